//! RE2's syntax, in its Latin-1 mode, parsed to the tree that the matcher is built from.
//!
//! A parser of our own, and not a rewrite of the pattern to another dialect, since the dialects differ
//! in places where a rewrite would be silently wrong: `[a&&b]` and `[a[b]` are ordinary classes in RE2,
//! `\C` is any byte, `\Q...\E` quotes, `\12` is octal, `{,3}` is literal text, `(?i)` folds the letters of
//! ASCII alone, groups may share a name, and patterns are bytes, not text. What RE2 refuses is refused here: backreferences,
//! look-around, doubled repetition, counts over 1000.
//!
//! ```text
//! alternation = concat { "|" concat }
//! concat      = { atom [ repeat ] }
//! repeat      = ( "*" | "+" | "?" | "{n}" | "{n,}" | "{n,m}" ) [ "?" ]
//! atom        = byte | "." | "^" | "$" | class | escape | "(" alternation ")" | "(?flags)" | ...
//! ```

use regex_syntax::hir::{Hir, HirKind, Look, Repetition};

use super::byte_set::{self, ByteSet, UnicodeClasses};

/// The largest count of a repetition, and of nested repetitions multiplied: RE2's own limit.
const REPEAT_MAX: u32 = 1000;

/// Levels of groups within groups. Bounds the recursion here and, with [`repeated`], in the compiler of the automaton;
/// RE2 allows 1000, which would need a larger stack than a server's threads have to spare.
const GROUP_DEPTH_MAX: u32 = 250;

/// Bytes of the pattern that an error message quotes at most.
const QUOTE_BYTES_MAX: usize = 40;

/// A pattern that is not RE2 syntax; the text says what is wrong and quotes where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError(String);

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SyntaxError {}

impl SyntaxError {
    pub(super) fn new(what: &str, fragment: &[u8]) -> Self {
        let shown = fragment.get(..QUOTE_BYTES_MAX).unwrap_or(fragment).escape_ascii();
        Self(format!("{what}: {shown}"))
    }
}

type Result<T> = std::result::Result<T, SyntaxError>;

/// Parses a whole pattern.
pub(super) fn parse(pattern: &[u8], classes: &mut UnicodeClasses) -> Result<Hir> {
    let mut parser =
        Parser { pattern, at: 0, flags: Flags::default(), depth: 0, classes, posix_ends: true };
    let tree = parser.alternation()?;
    match parser.peek() {
        None => Ok(tree.hir),
        Some(_) => Err(SyntaxError::new("unexpected )", pattern)),
    }
}

/// `(?U)` swaps greedy and lazy, which cannot be told apart when the whole text must match; it is
/// accepted and has no flag here.
#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    fold_case: bool,
    multi_line: bool,
    dot_newline: bool,
}

/// A parsed part, and the largest product of counts nested in it.
struct Tree {
    hir: Hir,
    repeats: u32,
}

struct Parser<'a> {
    pattern: &'a [u8],
    at: usize,
    flags: Flags,
    depth: u32,
    classes: &'a mut UnicodeClasses,
    /// Whether a `:]` may lie ahead: where none does, nobody need look for it again.
    posix_ends: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.pattern.get(self.at).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.pattern.get(self.at..).unwrap_or_default()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn eat(&mut self, token: &[u8]) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn since(&self, start: usize) -> &'a [u8] {
        self.pattern.get(start..self.at).unwrap_or_default()
    }

    fn alternation(&mut self) -> Result<Tree> {
        let mut branches = Vec::new();
        let mut repeats = 1;
        loop {
            let branch = self.concat()?;
            repeats = repeats.max(branch.repeats);
            branches.push(branch.hir);
            if !self.eat(b"|") {
                return Ok(Tree { hir: Hir::alternation(branches), repeats });
            }
        }
    }

    fn concat(&mut self) -> Result<Tree> {
        let mut atoms: Vec<Tree> = Vec::new();
        // Where the last repetition operator starts and ends: an operator right after it is refused.
        let mut last_operator: Option<(usize, usize)> = None;
        while let Some(byte) = self.peek() {
            let start = self.at;
            let counts = match byte {
                b'|' | b')' => break,
                b'*' => Some((0, None)),
                b'+' => Some((1, None)),
                b'?' => Some((0, Some(1))),
                b'{' => self.counts()?,
                _ => None,
            };
            let Some((min, max)) = counts else {
                self.atom(&mut atoms)?;
                continue;
            };
            if byte != b'{' {
                self.at += 1;
            }
            self.eat(b"?");
            if let Some((first, end)) = last_operator
                && end == start
            {
                return Err(SyntaxError::new("bad repetition operator", self.since(first)));
            }
            last_operator = Some((start, self.at));
            let Some(atom) = atoms.pop() else {
                let operator = self.since(start);
                return Err(SyntaxError::new("no argument for repetition operator", operator));
            };
            let factor = max.unwrap_or(min).max(1);
            let repeats = atom.repeats.saturating_mul(factor);
            if repeats > REPEAT_MAX {
                return Err(SyntaxError::new("invalid repetition size", self.since(start)));
            }
            atoms.push(Tree { hir: repeated(atom.hir, min, max), repeats });
        }
        let repeats = atoms.iter().map(|atom| atom.repeats).max().unwrap_or(1);
        Ok(Tree { hir: Hir::concat(atoms.into_iter().map(|a| a.hir).collect()), repeats })
    }

    /// `{n}`, `{n,}` or `{n,m}` under the cursor. Anything else that starts with a brace is literal
    /// text: `None`, and the cursor stays.
    fn counts(&mut self) -> Result<Option<(u32, Option<u32>)>> {
        let start = self.at;
        self.at += 1;
        let counts = self.number().and_then(|min| {
            let max = match self.eat(b",") {
                true if self.peek() == Some(b'}') => None,
                true => Some(self.number()?),
                false => Some(min),
            };
            self.eat(b"}").then_some((min, max))
        });
        let Some((min, max)) = counts else {
            self.at = start;
            return Ok(None);
        };
        if min > REPEAT_MAX || max.is_some_and(|max| max > REPEAT_MAX || max < min) {
            return Err(SyntaxError::new("invalid repetition size", self.since(start)));
        }
        Ok(Some((min, max)))
    }

    /// Decimal digits under the cursor; a number too large to hold reads as the largest.
    fn number(&mut self) -> Option<u32> {
        let start = self.at;
        let mut number = 0u32;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            self.at += 1;
            number = number.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
        }
        let leading_zero = self.at - start > 1 && self.pattern.get(start) == Some(&b'0');
        (self.at > start && !leading_zero).then_some(number)
    }

    fn atom(&mut self, atoms: &mut Vec<Tree>) -> Result<()> {
        let start = self.at;
        let Some(byte) = self.next() else { return Ok(()) };
        let hir = match byte {
            b'(' => return self.group(start, atoms),
            b'[' => self.class(start)?.to_hir(),
            b'.' => self.dot(),
            b'^' if self.flags.multi_line => Hir::look(Look::StartLF),
            b'^' => Hir::look(Look::Start),
            b'$' if self.flags.multi_line => Hir::look(Look::EndLF),
            b'$' => Hir::look(Look::End),
            b'\\' => return self.escape(start, atoms),
            byte => self.literal(byte),
        };
        atoms.push(Tree { hir, repeats: 1 });
        Ok(())
    }

    fn dot(&self) -> Hir {
        let mut set = ByteSet::all();
        if !self.flags.dot_newline {
            set.remove(b'\n');
        }
        set.to_hir()
    }

    fn literal(&self, byte: u8) -> Hir {
        if self.flags.fold_case {
            ByteSet::one(byte).folded().to_hir()
        } else {
            Hir::literal([byte])
        }
    }

    /// What follows `(`: a group, or flags for the rest of the enclosing group.
    fn group(&mut self, start: usize, atoms: &mut Vec<Tree>) -> Result<()> {
        let outer = self.flags;
        if self.eat(b"?") {
            // Look-ahead and look-behind.
            if self.eat(b"=") || self.eat(b"!") || self.eat(b"<=") || self.eat(b"<!") {
                return Err(SyntaxError::new("invalid perl operator", self.since(start)));
            }
            if self.eat(b"P<") || self.eat(b"<") {
                self.group_name(start)?;
            } else if !self.group_flags(start)? {
                return Ok(());
            }
        }
        self.depth += 1;
        if self.depth > GROUP_DEPTH_MAX {
            let what = format!("groups nest deeper than {GROUP_DEPTH_MAX} levels");
            return Err(SyntaxError::new(&what, self.since(start)));
        }
        let inner = self.alternation()?;
        self.depth -= 1;
        if !self.eat(b")") {
            return Err(SyntaxError::new("missing )", self.pattern));
        }
        self.flags = outer;
        atoms.push(inner);
        Ok(())
    }

    fn group_name(&mut self, start: usize) -> Result<()> {
        let name_start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
            self.at += 1;
        }
        let name = self.since(name_start);
        if name.is_empty() || !self.eat(b">") {
            return Err(SyntaxError::new("invalid named capture group", self.since(start)));
        }
        Ok(())
    }

    /// Flags after `(?`. True when a group opens with them (`(?i:`), false when they stand alone.
    fn group_flags(&mut self, start: usize) -> Result<bool> {
        let mut flags = self.flags;
        let mut on = true;
        let mut seen_since_minus = true;
        loop {
            match self.next() {
                Some(b'i') => flags.fold_case = on,
                Some(b'm') => flags.multi_line = on,
                Some(b's') => flags.dot_newline = on,
                Some(b'U') => {}
                Some(b'-') if on => {
                    on = false;
                    seen_since_minus = false;
                    continue;
                }
                Some(end @ (b':' | b')')) if seen_since_minus => {
                    self.flags = flags;
                    return Ok(end == b':');
                }
                None => return Err(SyntaxError::new("missing )", self.pattern)),
                Some(_) => {
                    return Err(SyntaxError::new("invalid perl operator", self.since(start)));
                }
            }
            seen_since_minus = true;
        }
    }

    /// What follows a backslash outside of a class.
    fn escape(&mut self, start: usize, atoms: &mut Vec<Tree>) -> Result<()> {
        let hir = match self.peek() {
            Some(b'Q') => {
                self.at += 1;
                while !self.rest().is_empty() && !self.eat(br"\E") {
                    if let Some(byte) = self.next() {
                        atoms.push(Tree { hir: self.literal(byte), repeats: 1 });
                    }
                }
                return Ok(());
            }
            Some(b'A') => Some(Hir::look(Look::Start)),
            Some(b'z') => Some(Hir::look(Look::End)),
            Some(b'b') => Some(Hir::look(Look::WordAscii)),
            Some(b'B') => Some(Hir::look(Look::WordAsciiNegate)),
            Some(b'C') => Some(ByteSet::all().to_hir()),
            _ => None,
        };
        let hir = if let Some(hir) = hir {
            self.at += 1;
            hir
        } else if let Some(set) = self.class_escape(start)? {
            set.to_hir()
        } else {
            let byte = self.byte_escape(start)?;
            self.literal(byte)
        };
        atoms.push(Tree { hir, repeats: 1 });
        Ok(())
    }

    /// `\d`, `\pL`, `\p{Lu}` and their negations after a backslash; `None` leaves the cursor.
    fn class_escape(&mut self, start: usize) -> Result<Option<ByteSet>> {
        let Some(letter) = self.peek() else { return Ok(None) };
        if let Some(set) = byte_set::perl(letter.to_ascii_lowercase()) {
            self.at += 1;
            return Ok(Some(self.group_set(set, letter.is_ascii_uppercase())));
        }
        if !matches!(letter, b'p' | b'P') {
            return Ok(None);
        }
        self.at += 1;
        let mut negated = letter == b'P';
        let bad =
            |parser: &Self| SyntaxError::new("invalid character class range", parser.since(start));
        let name = if self.eat(b"{") {
            negated ^= self.eat(b"^");
            let name_start = self.at;
            while self.peek().is_some_and(|b| b != b'}') {
                self.at += 1;
            }
            let name = self.since(name_start);
            if !self.eat(b"}") {
                return Err(bad(self));
            }
            name
        } else {
            let name_start = self.at;
            self.at = (self.at + 1).min(self.pattern.len());
            self.since(name_start)
        };
        let set = self.classes.get(name).ok_or_else(|| bad(self))?;
        Ok(Some(self.group_set(set, negated)))
    }

    /// A named set as the flags make it: folded first, negated then.
    fn group_set(&self, set: ByteSet, negated: bool) -> ByteSet {
        let set = if self.flags.fold_case { set.folded() } else { set };
        if negated { set.complement() } else { set }
    }

    /// An escape that stands for one byte, after its backslash.
    fn byte_escape(&mut self, start: usize) -> Result<u8> {
        let Some(byte) = self.next() else {
            return Err(SyntaxError::new("trailing \\ at end of pattern", self.pattern));
        };
        let value = match byte {
            b'a' => Some(0x07),
            b'f' => Some(0x0C),
            b'n' => Some(b'\n'),
            b'r' => Some(b'\r'),
            b't' => Some(b'\t'),
            b'v' => Some(0x0B),
            b'x' => self.hex(),
            // A lone digit would be a backreference.
            b'1'..=b'7' if !self.peek().is_some_and(is_octal) => None,
            b'0'..=b'7' => self.octal(byte),
            // Any other ASCII byte that no letter or digit is stands for itself.
            byte if byte.is_ascii() && !byte.is_ascii_alphanumeric() => Some(byte),
            _ => None,
        };
        value.ok_or_else(|| SyntaxError::new("invalid escape sequence", self.since(start)))
    }

    /// Two hexadecimal digits, or any number of them in braces, up to FF.
    fn hex(&mut self) -> Option<u8> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        if self.eat(b"{") {
            let mut value = None;
            loop {
                match self.next()? {
                    b'}' => return value.and_then(|v: u32| u8::try_from(v).ok()),
                    byte => {
                        let sum = value.unwrap_or(0) * 16 + digit(byte)?;
                        value = Some(sum).filter(|v| *v <= 0xFF);
                        value?;
                    }
                }
            }
        }
        let high = self.next().and_then(digit)?;
        let low = self.next().and_then(digit)?;
        u8::try_from(high * 16 + low).ok()
    }

    /// An octal number of up to three digits, of which `first` is the first.
    fn octal(&mut self, first: u8) -> Option<u8> {
        let mut value = u32::from(first - b'0');
        for _ in 0..2 {
            let Some(digit) = self.peek().filter(|b| is_octal(*b)) else { break };
            self.at += 1;
            value = value * 8 + u32::from(digit - b'0');
        }
        u8::try_from(value).ok()
    }

    /// A bracketed class, after its `[`.
    fn class(&mut self, start: usize) -> Result<ByteSet> {
        let negated = self.eat(b"^");
        let mut set = ByteSet::default();
        let mut first = true;
        loop {
            let item = self.at;
            match self.peek() {
                None => {
                    let class = self.since(start);
                    return Err(SyntaxError::new("missing ]", class));
                }
                Some(b']') if !first => {
                    self.at += 1;
                    break;
                }
                Some(b'[') if self.rest().starts_with(b"[:") => {
                    if let Some(named) = self.posix_class()? {
                        set.union(&named);
                    } else {
                        set.union(&self.class_range(item)?);
                    }
                }
                Some(b'\\') => {
                    self.at += 1;
                    if let Some(named) = self.class_escape(item)? {
                        set.union(&named);
                    } else {
                        self.at = item;
                        set.union(&self.class_range(item)?);
                    }
                }
                Some(_) => set.union(&self.class_range(item)?),
            }
            first = false;
        }
        Ok(if negated { set.complement() } else { set })
    }

    /// `[:name:]` within a class; `None` leaves the cursor where no `:]` follows.
    fn posix_class(&mut self) -> Result<Option<ByteSet>> {
        if !self.posix_ends {
            return Ok(None);
        }
        let rest = self.rest();
        let Some(len) = rest.windows(2).skip(2).position(|pair| pair == b":]") else {
            self.posix_ends = false;
            return Ok(None);
        };
        let start = self.at;
        self.at += len + 4;
        let name = rest.get(2..len + 2).unwrap_or_default();
        let (name, negated) = match name.strip_prefix(b"^") {
            Some(name) => (name, true),
            None => (name, false),
        };
        match byte_set::posix(name) {
            Some(set) => Ok(Some(self.group_set(set, negated))),
            None => Err(SyntaxError::new("invalid character class range", self.since(start))),
        }
    }

    /// A byte or a range of bytes within a class.
    fn class_range(&mut self, start: usize) -> Result<ByteSet> {
        let low = self.class_byte()?;
        let mut high = low;
        if self.peek() == Some(b'-') && self.pattern.get(self.at + 1).is_some_and(|b| *b != b']') {
            self.at += 1;
            high = self.class_byte()?;
        }
        if high < low {
            return Err(SyntaxError::new("invalid character class range", self.since(start)));
        }
        Ok(self.group_set(ByteSet::of(&[(low, high)]), false))
    }

    fn class_byte(&mut self) -> Result<u8> {
        let start = self.at;
        match self.next() {
            Some(b'\\') => self.byte_escape(start),
            Some(byte) => Ok(byte),
            None => Err(SyntaxError::new("missing ]", self.pattern)),
        }
    }
}

/// A part, repeated so often. Of `*`, `+` and `?` of one another one or two are left, as in RE2: what stands between operators may be nothing
/// that is matched, like flags, so that a part may have as many as there is room for, and nobody could go through a tree of that depth.
fn repeated(part: Hir, mut min: u32, mut max: Option<u32>) -> Hir {
    const STAR: (u32, Option<u32>) = (0, None);
    const QUERY: (u32, Option<u32>) = (0, Some(1));
    let is_simple = |times| matches!(times, STAR | (1, None) | QUERY);
    // Nothing, as often as one likes, is once or not at all.
    if part.properties().maximum_len() == Some(0) {
        (min, max) = (min.min(1), Some(max.map_or(1, |max| max.min(1))));
    }
    if let HirKind::Repetition(inner) = part.kind() {
        let (of_part, times) = ((inner.min, inner.max), (min, max));
        if is_simple(of_part) && is_simple(times) {
            if of_part == STAR || of_part == times {
                return part;
            }
            (min, max) = STAR;
        }
    }
    Hir::repetition(Repetition { min, max, greedy: true, sub: Box::new(part) })
}

fn is_octal(byte: u8) -> bool {
    matches!(byte, b'0'..=b'7')
}
