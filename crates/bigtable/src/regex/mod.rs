//! Regular expressions of row filters: RE2 syntax over raw bytes, matched against the whole text.
//!
//! A pattern is bytes in RE2's Latin-1 mode: each byte of pattern and text is one character, `.` is any
//! byte but a newline, `\C` is any byte. Matching takes time linear in the text, and at worst in the pattern for each byte of it.
//! [`parse`] turns a pattern to a tree; the tree becomes the cheapest of:
//!
//! ```text
//! \C*                      every text           nothing to compare
//! abc   a\.b   abc|abd     a few texts          binary search, memcmp
//! abc\C*                   a prefix             memcmp
//! anything else            an automaton of regex-automata, anchored at both ends
//! ```
//!
//! [`Regex::candidates`] names the texts that can match, so that a read touches no others.

mod automaton;
mod byte_set;
mod parse;

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

use bytes::Bytes;
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Class, Hir, HirKind};

use automaton::Automaton;
use byte_set::UnicodeClasses;

pub use parse::SyntaxError;

/// Bytes of all automata of one request. RE2's own default is 8 MiB for one pattern; a filter can
/// hold thousands of patterns, so here they share it.
pub const REGEX_BYTES_MAX: usize = 8 << 20;

/// Bytes of all automata of one request that are built in full, and of those that turn out too large for it: sixty of these, in some
/// ten milliseconds. A filter has room for a thousand.
const FULL_AUTOMATA_BYTES: usize = 1 << 20;

/// Bytes of the caches of all automata of one request: enough for fifty to have the most. Those beyond share the last quarter, and have what common ones use in
/// any case: 8 MiB for the thousand that a filter has room for.
const CACHES_BYTES: usize = 2 << 20;

/// Bytes of a text or a prefix in a list of candidates, beside its own: its place in the list, in one more where texts are all that matches, and
/// its allocation.
const CANDIDATE_BYTES: usize = 2 * size_of::<Bytes>() + 16;

/// Bytes of a text that are compared with a pattern, or with other bytes, in the time of one step: what a filter needs to go
/// through a cell.
pub(crate) const BYTES_A_STEP: usize = 128;

/// Texts or prefixes that [`Regex::candidates`] names at most: beyond it, comparing them costs more
/// than the automaton, and reading them one by one costs more than a scan.
const CANDIDATES_MAX: usize = 128;

/// What remains of [`REGEX_BYTES_MAX`] while the patterns of one request are compiled.
#[derive(Debug)]
pub struct Budget {
    bytes: usize,
    /// What is left for automata that are built in full.
    full_bytes: usize,
    /// What is left of the caches of the others.
    cache_bytes: usize,
    /// What all patterns take so far, and their caches at most.
    kept_bytes: usize,
    classes: UnicodeClasses,
    /// Patterns that have an automaton, which all that are the same share.
    automata: HashMap<Vec<u8>, Regex>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: REGEX_BYTES_MAX,
            full_bytes: FULL_AUTOMATA_BYTES,
            cache_bytes: CACHES_BYTES,
            kept_bytes: 0,
            classes: UnicodeClasses::default(),
            automata: HashMap::new(),
        }
    }
}

impl Budget {
    /// Room for one more cache of so many bytes: a part of what is left, so that others have some, too.
    fn take_cache(&mut self, bytes: RangeInclusive<usize>) -> usize {
        let bytes = (self.cache_bytes / 16).clamp(*bytes.start(), *bytes.end());
        self.cache_bytes = self.cache_bytes.saturating_sub(bytes);
        bytes
    }

    /// So much is kept for as long as its request.
    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
    }

    /// What the patterns that were compiled keep.
    pub(crate) fn kept(self) -> Kept {
        let automata = self.automata.into_values().filter_map(|regex| match regex.matcher {
            Matcher::Automaton(automaton) => Some(automaton),
            Matcher::Any | Matcher::Texts(_) | Matcher::Prefix(_) => None,
        });
        Kept { bytes: self.kept_bytes, automata: automata.collect() }
    }

    /// `None` where so much is not left.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }
}

/// What the patterns of a request keep for as long as it.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    bytes: usize,
    automata: Vec<Automaton>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Kept {
    /// Bytes that it may come to.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the caches as they are.
    #[cfg(test)]
    pub(crate) fn cache_bytes(&self) -> usize {
        self.automata.iter().map(Automaton::cache_bytes).sum()
    }

    /// Lets go of what was built while texts were compared, which is built again.
    pub(crate) fn forget(&self) {
        for automaton in &self.automata {
            automaton.forget();
        }
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
    Automaton(Automaton),
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

impl Candidates {
    /// Bytes that they take, roughly.
    fn bytes(&self) -> usize {
        let Self::Of { texts, prefixes, .. } = self else { return 0 };
        texts.iter().chain(prefixes).map(|text| CANDIDATE_BYTES + text.len()).sum()
    }
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
        if let Some(known) = budget.automata.get(pattern).cloned() {
            budget.keep(known.candidates.bytes());
            return Ok(known);
        }
        let hir = parse::parse(pattern, &mut budget.classes)?;
        let candidates = candidates(&hir);
        budget.keep(candidates.bytes());
        let matcher = match &candidates {
            Candidates::Of { texts, prefixes, exact: true } if prefixes.is_empty() => {
                Matcher::Texts(texts.clone())
            }
            Candidates::Of { texts, prefixes, exact: true } if texts.is_empty() => {
                match prefixes.as_slice() {
                    [prefix] if prefix.is_empty() => Matcher::Any,
                    [prefix] => Matcher::Prefix(prefix.clone()),
                    _ => automaton(hir, pattern, budget)?,
                }
            }
            _ => automaton(hir, pattern, budget)?,
        };
        let regex = Self { matcher, candidates };
        if matches!(regex.matcher, Matcher::Automaton(_)) {
            budget.automata.insert(pattern.to_vec(), regex.clone());
        }
        Ok(regex)
    }

    /// Whether the whole of `text` matches.
    pub fn is_match(&self, text: &[u8]) -> bool {
        self.is_match_within(text, &mut { u64::MAX }).unwrap_or(false)
    }

    /// The same, with what it takes taken off the steps that are left. `None` where nothing is left.
    pub fn is_match_within(&self, text: &[u8], steps_left: &mut u64) -> Option<bool> {
        *steps_left = steps_left.saturating_sub(1 + (text.len() / BYTES_A_STEP) as u64);
        if *steps_left == 0 {
            return None;
        }
        Some(match &self.matcher {
            Matcher::Any => true,
            Matcher::Texts(texts) => match texts.as_slice() {
                [only] => only.as_ref() == text,
                texts => texts.binary_search_by(|t| t.as_ref().cmp(text)).is_ok(),
            },
            Matcher::Prefix(prefix) => text.starts_with(prefix),
            Matcher::Automaton(automaton) => return automaton.is_match(text, steps_left),
        })
    }

    /// Steps that [`BYTES_A_STEP`] bytes of a text may take, before it is known what they are.
    pub fn weight(&self) -> u64 {
        match &self.matcher {
            Matcher::Automaton(automaton) => automaton.weight(),
            Matcher::Any | Matcher::Texts(_) | Matcher::Prefix(_) => 1,
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

fn automaton(hir: Hir, pattern: &[u8], budget: &mut Budget) -> Result<Matcher, SyntaxError> {
    let automaton = Automaton::new(hir, budget);
    let too_large = || SyntaxError::new("pattern too large - compile failed", pattern);
    automaton.map(Matcher::Automaton).ok_or_else(too_large)
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
