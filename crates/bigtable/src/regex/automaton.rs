//! The automata of patterns that nothing simpler decides.
//!
//! A small one is built in full before it runs. Of a larger one, states are built as a text comes to them, and kept while there is
//! room. Few patterns ever need many, but `\C*a\C{999}` finds a new one at nearly every byte of a text of chance, and each takes a
//! look at a thousand parts of the pattern: microseconds. So what is built is counted, and a limit ends it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Hir, Look};

use super::Budget;

/// Bytes of the cache in which one automaton builds its states while it runs, at most, beyond those that any takes. Common patterns use up to 6 KiB, however much there is. `.*a.{12}` has
/// states of 63 KiB on text of chance, and builds one in 150 of them again with half of that; in twice as much, the next larger count would not fit.
const LAZY_CACHE_BYTES: usize = 32 << 10;

/// The same where there are many patterns: enough for those that are common. With less, `.*foo.*bar.*` builds a state every twenty bytes.
const LAZY_CACHE_BYTES_MIN: usize = 8 << 10;

/// Bytes of an automaton that is built in full before it runs, and of what it takes to build it: small ones run faster so.
const FULL_AUTOMATON_BYTES: usize = 16 << 10;

/// Parts of a pattern (states of the automaton that it is first compiled to, and alternatives) with which building in full is tried. More take
/// longer to build than short texts take to match, and seldom fit.
const FULL_AUTOMATON_PARTS: usize = 30;

/// Parts of a pattern that are gone through in the time of one step while a state is built, roughly.
const PARTS_A_STEP: usize = 2;

/// Ranges of a class that are compared with a byte in the time in which a part is gone through, roughly.
const RANGES_A_PART: usize = 8;

/// Bytes of a text for each of which a state is built, as far as the time is guessed beforehand. With patterns that are common it is one
/// in thousands, with the worst every byte.
const BYTES_A_STATE: usize = 32;

#[derive(Clone)]
pub(super) enum Automaton {
    Full(Arc<dense::DFA<Vec<u32>>>),
    Lazy(Arc<Lazy>),
}

pub(super) struct Lazy {
    dfa: DFA,
    /// For whoever runs it, which is one at a time but for filters that are shared.
    cache: Mutex<Option<Box<Cache>>>,
    /// Steps that it takes to build a state.
    state_steps: u64,
}

impl Automaton {
    /// The automaton of texts that match as a whole. `None` where it is larger than what is left of the budget.
    pub(super) fn new(pattern: Hir, budget: &mut Budget) -> Option<Self> {
        let whole = Hir::concat(vec![Hir::look(Look::Start), pattern, Hir::look(Look::End)]);
        let config = thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(budget.bytes));
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(&whole).ok()?;
        if let Some(full) = full(&nfa, budget) {
            budget.take(full.memory_usage())?;
            budget.keep(full.memory_usage());
            return Some(Self::Full(Arc::new(full)));
        }
        budget.take(nfa.memory_usage())?;
        Lazy::new(nfa, budget).map(|lazy| Self::Lazy(Arc::new(lazy)))
    }

    /// Whether the whole of `text` matches. What has to be built takes steps of those that are left; `None` where they do not suffice.
    pub(super) fn is_match(&self, text: &[u8], steps_left: &mut u64) -> Option<bool> {
        match self {
            Self::Full(dfa) => {
                let input = Input::new(text).anchored(Anchored::Yes).earliest(true);
                Some(matches!(dfa.try_search_fwd(&input), Ok(Some(_))))
            }
            Self::Lazy(lazy) => lazy.is_match(text, steps_left),
        }
    }

    /// Bytes of a cache in which states were built.
    #[cfg(test)]
    pub(super) fn cache_bytes(&self) -> usize {
        match self {
            Self::Full(_) => 0,
            Self::Lazy(lazy) => lazy.cache().as_ref().map_or(0, |cache| cache.memory_usage()),
        }
    }

    /// Lets go of what was built while it ran. It is built again.
    pub(super) fn forget(&self) {
        if let Self::Lazy(lazy) = self {
            *lazy.cache() = None;
        }
    }

    /// What a byte of a text may count for beside one that is only gone through, before it is known what has to be built.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Full(_) => 1,
            Self::Lazy(lazy) => 1 + lazy.state_steps * (super::BYTES_A_STEP / BYTES_A_STATE) as u64,
        }
    }
}

/// Parts of a pattern that are gone through while a state is built: each alternative is one, also where all are the same.
fn parts(nfa: &NFA) -> usize {
    let parts = nfa.states().iter().map(|state| match state {
        State::Sparse(class) => 1 + class.transitions.len() / RANGES_A_PART,
        State::Union { alternates } => alternates.len().max(1),
        _ => 1,
    });
    parts.sum()
}

/// The automaton in full, where it is small.
fn full(nfa: &NFA, budget: &mut Budget) -> Option<dense::DFA<Vec<u32>>> {
    if parts(nfa) > FULL_AUTOMATON_PARTS {
        return None;
    }
    budget.full_bytes = budget.full_bytes.checked_sub(FULL_AUTOMATON_BYTES)?;
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .dfa_size_limit(Some(FULL_AUTOMATON_BYTES))
        .determinize_size_limit(Some(FULL_AUTOMATON_BYTES));
    let full = dense::Builder::new().configure(config).build_from_nfa(nfa).ok()?;
    budget.full_bytes += FULL_AUTOMATON_BYTES.saturating_sub(full.memory_usage());
    Some(full)
}

impl Lazy {
    fn new(nfa: NFA, budget: &mut Budget) -> Option<Self> {
        let state_steps = 1 + (parts(&nfa) / PARTS_A_STEP) as u64;
        // What a few states need in any case: once or twice as much as the pattern, which is bounded.
        let least = Config::new().get_minimum_cache_capacity(&nfa).ok()?;
        let cache_bytes = least + budget.take_cache(LAZY_CACHE_BYTES_MIN..=LAZY_CACHE_BYTES);
        budget.keep(nfa.memory_usage() + cache_bytes);
        let config = Config::new().cache_capacity(cache_bytes).skip_cache_capacity_check(true);
        let builder = regex_automata::hybrid::dfa::Builder::new().configure(config).clone();
        let dfa = builder.build_from_nfa(nfa).ok()?;
        Some(Self { dfa, cache: Mutex::default(), state_steps })
    }

    fn cache(&self) -> MutexGuard<'_, Option<Box<Cache>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_match(&self, text: &[u8], steps_left: &mut u64) -> Option<bool> {
        match self.cache.try_lock() {
            Ok(mut kept) => {
                let cache = kept.get_or_insert_with(|| Box::new(self.dfa.create_cache()));
                self.run(cache, text, steps_left)
            }
            // Somebody else has it, or left it as it may be.
            Err(_) => self.run(&mut self.dfa.create_cache(), text, steps_left),
        }
    }

    fn run(&self, cache: &mut Cache, text: &[u8], steps_left: &mut u64) -> Option<bool> {
        let start = Input::new(text).anchored(Anchored::Yes);
        // Caches that are full are emptied and never given up, so nothing fails.
        let mut state = self.dfa.start_state_forward(cache, &start).ok()?;
        for byte in text {
            // No state matches before the end of the text is seen: what is marked is not built yet, or leads nowhere.
            if state.is_tagged() {
                return Some(false);
            }
            let mut next = self.dfa.next_state_untagged(cache, state, *byte);
            if next.is_unknown() {
                *steps_left = steps_left.saturating_sub(self.state_steps);
                if *steps_left == 0 {
                    return None;
                }
                next = self.dfa.next_state(cache, state, *byte).ok()?;
            }
            state = next;
        }
        Some(self.dfa.next_eoi_state(cache, state).ok()?.is_match())
    }
}
