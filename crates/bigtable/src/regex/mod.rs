//! Regular expressions of row filters: RE2 syntax over raw bytes, matched against the whole text.
//!
//! A pattern is bytes in RE2's Latin-1 mode: each byte of pattern and text is one character, `.` is any
//! byte but a newline, `\C` is any byte. Matching takes time linear in the text, whatever the pattern.
//! [`parse`] turns a pattern to a tree; the tree becomes the cheapest of:
//!
//! ```text
//! \C*                      every text           nothing to compare
//! abc   a\.b   abc|abd     a few texts          binary search, memcmp
//! abc\C*                   a prefix             memcmp
//! anything else            regex-automata's meta engine, anchored at both ends
//! ```
//!
//! [`Regex::candidates`] names the texts that can match, so that a read touches no others.

mod byte_set;
mod parse;

use std::fmt;

use bytes::Bytes;
use regex_automata::meta;
use regex_automata::{Anchored, Input};
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use byte_set::UnicodeClasses;

pub use parse::SyntaxError;

/// Bytes of all automata of one request. RE2's own default is 8 MiB for one pattern; a filter can
/// hold thousands of patterns, so here they share it.
pub const REGEX_BYTES_MAX: usize = 8 << 20;

/// Bytes of the cache in which one automaton builds its states while it runs, for each thread that
/// runs it. Less makes large classes with counts start over more often; more is seldom used.
const LAZY_CACHE_BYTES: usize = 256 << 10;

/// Bytes of an automaton that is built in full before it runs: small ones run faster so.
const FULL_AUTOMATON_BYTES: usize = 32 << 10;

/// Texts or prefixes that [`Regex::candidates`] names at most: beyond it, comparing them costs more
/// than the automaton, and reading them one by one costs more than a scan.
const CANDIDATES_MAX: usize = 128;

/// What remains of [`REGEX_BYTES_MAX`] while the patterns of one request are compiled.
#[derive(Debug)]
pub struct Budget {
    bytes: usize,
    classes: UnicodeClasses,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: REGEX_BYTES_MAX, classes: UnicodeClasses::default() }
    }
}

/// A compiled pattern. Cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Regex {
    matcher: Matcher,
    candidates: Candidates,
}

#[derive(Clone)]
enum Matcher {
    /// Every text.
    Any,
    /// These texts, sorted.
    Texts(Vec<Bytes>),
    /// Texts that start so.
    Prefix(Bytes),
    Automaton(Box<meta::Regex>),
}

/// Which texts can match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidates {
    /// Nothing is known.
    Any,
    /// Only these `texts`, and texts that start with one of `prefixes`; both sorted. When `exact`, all
    /// of them do match.
    Of {
        /// Whole texts.
        texts: Vec<Bytes>,
        /// Prefixes.
        prefixes: Vec<Bytes>,
        /// Whether every text that is named matches.
        exact: bool,
    },
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.matcher {
            Matcher::Any => f.write_str("Regex(any)"),
            Matcher::Texts(texts) => write!(f, "Regex({texts:?})"),
            Matcher::Prefix(prefix) => write!(f, "Regex({prefix:?}..)"),
            Matcher::Automaton(_) => f.write_str("Regex(automaton)"),
        }
    }
}

impl Regex {
    /// Compiles `pattern`. Fails where it is not RE2 syntax, or where the automata of `budget`'s
    /// request would grow past [`REGEX_BYTES_MAX`].
    pub fn compile(pattern: &[u8], budget: &mut Budget) -> Result<Self, SyntaxError> {
        let hir = parse::parse(pattern, &mut budget.classes)?;
        let candidates = candidates(&hir);
        let matcher = match &candidates {
            Candidates::Of { texts, prefixes, exact: true } if prefixes.is_empty() => {
                Matcher::Texts(texts.clone())
            }
            Candidates::Of { texts, prefixes, exact: true } if texts.is_empty() => {
                match prefixes.as_slice() {
                    [prefix] if prefix.is_empty() => Matcher::Any,
                    [prefix] => Matcher::Prefix(prefix.clone()),
                    _ => Matcher::Automaton(automaton(hir, pattern, budget)?),
                }
            }
            _ => Matcher::Automaton(automaton(hir, pattern, budget)?),
        };
        Ok(Self { matcher, candidates })
    }

    /// Whether the whole of `text` matches.
    pub fn is_match(&self, text: &[u8]) -> bool {
        match &self.matcher {
            Matcher::Any => true,
            Matcher::Texts(texts) => match texts.as_slice() {
                [only] => only.as_ref() == text,
                texts => texts.binary_search_by(|t| t.as_ref().cmp(text)).is_ok(),
            },
            Matcher::Prefix(prefix) => text.starts_with(prefix),
            Matcher::Automaton(regex) => {
                regex.is_match(Input::new(text).anchored(Anchored::Yes).earliest(true))
            }
        }
    }

    /// Which texts can match.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// Whether every text matches.
    pub fn matches_all(&self) -> bool {
        matches!(self.matcher, Matcher::Any)
    }
}

fn automaton(
    hir: Hir,
    pattern: &[u8],
    budget: &mut Budget,
) -> Result<Box<meta::Regex>, SyntaxError> {
    let whole = Hir::concat(vec![Hir::look(Look::Start), hir, Hir::look(Look::End)]);
    let config = meta::Config::new()
        .utf8_empty(false)
        .nfa_size_limit(Some(budget.bytes))
        .onepass_size_limit(Some(FULL_AUTOMATON_BYTES))
        .dfa_size_limit(Some(FULL_AUTOMATON_BYTES))
        .hybrid_cache_capacity(LAZY_CACHE_BYTES);
    let too_large = || SyntaxError::new("pattern too large - compile failed", pattern);
    let regex =
        meta::Builder::new().configure(config).build_from_hir(&whole).map_err(|_| too_large())?;
    budget.bytes = budget.bytes.checked_sub(regex.memory_usage()).ok_or_else(too_large)?;
    Ok(Box::new(regex))
}

/// Which texts the tree can match. A word boundary or anchor inside only narrows what matches, so the
/// answer stays a superset and is no longer exact.
fn candidates(hir: &Hir) -> Candidates {
    let exact = hir.properties().look_set().is_empty();
    if let Some(prefix) = open_prefix(hir) {
        return Candidates::Of { texts: Vec::new(), prefixes: vec![prefix], exact };
    }
    if let HirKind::Literal(literal) = hir.kind() {
        let texts = vec![Bytes::copy_from_slice(&literal.0)];
        return Candidates::Of { texts, prefixes: Vec::new(), exact };
    }
    let mut extractor = Extractor::new();
    extractor.limit_class(CANDIDATES_MAX).limit_total(CANDIDATES_MAX);
    let found = extractor.extract(hir);
    let Some(literals) = found.literals() else { return Candidates::Any };
    let (mut texts, mut prefixes) = (Vec::new(), Vec::new());
    for literal in literals {
        let bytes = Bytes::copy_from_slice(literal.as_bytes());
        if literal.is_exact() { texts.push(bytes) } else { prefixes.push(bytes) }
    }
    if prefixes.iter().any(Bytes::is_empty) {
        return Candidates::Any;
    }
    for list in [&mut texts, &mut prefixes] {
        list.sort_unstable();
        list.dedup();
    }
    // A prefix says what a match starts with, not that all texts with it match.
    let exact = exact && prefixes.is_empty();
    Candidates::Of { texts, prefixes, exact }
}

/// The literal before a final `\C*`, where that is all there is to the pattern.
fn open_prefix(hir: &Hir) -> Option<Bytes> {
    match hir.kind() {
        HirKind::Repetition(_) if is_any_bytes(hir) => Some(Bytes::new()),
        HirKind::Concat(parts) => match parts.as_slice() {
            [first, last] if is_any_bytes(last) => match first.kind() {
                HirKind::Literal(literal) => Some(Bytes::copy_from_slice(&literal.0)),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn is_any_bytes(hir: &Hir) -> bool {
    let HirKind::Repetition(repetition) = hir.kind() else { return false };
    let HirKind::Class(Class::Bytes(class)) = repetition.sub.kind() else { return false };
    repetition.min == 0
        && repetition.max.is_none()
        && matches!(class.ranges(), [all] if all.start() == 0 && all.end() == u8::MAX)
}

#[cfg(test)]
mod tests;
