//! `ListBackupsRequest.filter`: which backups are listed.
//!
//! ```text
//! filter      = all
//! all         = any { ["AND"] any }                     OR binds more tightly than AND, as in AIP-160
//! any         = one { "OR" one }
//! one         = ["NOT"] ( "(" all ")" | field op value )
//! op          = "<" | ">" | "<=" | ">=" | "!=" | "=" | ":"
//! value       = word | "quoted"
//! ```
//!
//! Names and states are compared without regard to case. `name:word` asks for a part of the name; `name:"quoted"`
//! and `=` for the whole name or the id at its end.

use std::cmp::Ordering;

use tepui_bigtable::error::{Error, Result};

use super::times::micros;
use crate::api::admin::Backup;
use crate::api::admin::backup::State;
use crate::limits::{BACKUP_FILTER_CHARS_MAX, BACKUP_FILTER_DEPTH_MAX};

/// A filter that was understood.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
    Is(Field, Op, Value),
}

/// A field of a backup that can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Name,
    SourceTable,
    State,
    StartTime,
    EndTime,
    ExpireTime,
    SizeBytes,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Less,
    Greater,
    AtMost,
    AtLeast,
    Differs,
    Equals,
    Has,
}

/// What a field is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// In lower case; whether it stood in quotes.
    Text(String, bool),
    /// Bytes, a state's number, or microseconds since 1970.
    Number(i64),
}

/// What a field of a backup holds.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found<'a> {
    Text(&'a str),
    Number(i64),
}

impl Field {
    /// The field of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "name" => Self::Name,
            "source_table" => Self::SourceTable,
            "state" => Self::State,
            "start_time" => Self::StartTime,
            "end_time" => Self::EndTime,
            "expire_time" => Self::ExpireTime,
            "size_bytes" => Self::SizeBytes,
            _ => return None,
        })
    }

    fn of(self, backup: &Backup) -> Found<'_> {
        let time = |at: &Option<prost_types::Timestamp>| {
            Found::Number(at.as_ref().map_or(i64::MIN, micros))
        };
        match self {
            Self::Name => Found::Text(&backup.name),
            Self::SourceTable => Found::Text(&backup.source_table),
            Self::State => Found::Number(i64::from(backup.state)),
            Self::StartTime => time(&backup.start_time),
            Self::EndTime => time(&backup.end_time),
            Self::ExpireTime => time(&backup.expire_time),
            Self::SizeBytes => Found::Number(backup.size_bytes),
        }
    }

    /// Which of two backups comes first by this field.
    pub fn compare(self, a: &Backup, b: &Backup) -> Ordering {
        self.of(a).cmp(&self.of(b))
    }

    fn value(self, text: &str, quoted: bool) -> Result<Value> {
        let bad = |want: &str| bad(format!("{text:?} is not {want}"));
        match self {
            Self::Name | Self::SourceTable => Ok(Value::Text(text.to_lowercase(), quoted)),
            Self::State => State::from_str_name(&text.to_ascii_uppercase())
                .map(|state| Value::Number(i64::from(i32::from(state))))
                .ok_or_else(|| bad("CREATING or READY")),
            Self::SizeBytes => {
                text.parse().map(Value::Number).map_err(|_| bad("a number of bytes"))
            }
            Self::StartTime | Self::EndTime | Self::ExpireTime => text
                .parse::<prost_types::Timestamp>()
                .map(|at| Value::Number(micros(&at)))
                .map_err(|_| bad("a time of the form YYYY-MM-DDTHH:MM:SSZ")),
        }
    }
}

impl Filter {
    /// Reads a filter; an empty one lists all.
    pub fn parse(text: &str) -> Result<Self> {
        if text.chars().count() > BACKUP_FILTER_CHARS_MAX {
            return Err(bad(format!("it is longer than {BACKUP_FILTER_CHARS_MAX} characters")));
        }
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
        if parser.tokens.is_empty() {
            return Ok(Self::All(Vec::new()));
        }
        let filter = parser.all()?;
        match parser.peek() {
            None => Ok(filter),
            Some(token) => Err(bad(format!("{token} is not expected there"))),
        }
    }

    /// Whether a backup is listed.
    pub fn admits(&self, backup: &Backup) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.admits(backup)),
            Self::Any(parts) => parts.iter().any(|part| part.admits(backup)),
            Self::Not(part) => !part.admits(backup),
            Self::Is(field, op, value) => match (field.of(backup), value) {
                (Found::Text(text), Value::Text(want, quoted)) => text_is(text, *op, want, *quoted),
                (Found::Number(number), Value::Number(want)) => op.holds(number.cmp(want)),
                _ => false,
            },
        }
    }
}

impl Op {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::Greater => ordering.is_gt(),
            Self::AtMost => ordering.is_le(),
            Self::AtLeast => ordering.is_ge(),
            Self::Differs => ordering.is_ne(),
            Self::Equals | Self::Has => ordering.is_eq(),
        }
    }
}

fn text_is(text: &str, op: Op, want: &str, quoted: bool) -> bool {
    let text = text.to_lowercase();
    let id = text.rsplit('/').next().unwrap_or_default();
    match op {
        Op::Has if !quoted => text.contains(want),
        Op::Has | Op::Equals => text == want || id == want,
        Op::Differs => text != want && id != want,
        // A value without a slash is compared with ids.
        _ => op.holds(if want.contains('/') { text.as_str() } else { id }.cmp(want)),
    }
}

fn bad(what: impl std::fmt::Display) -> Error {
    Error::invalid_argument(format!("filter: {what}"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Op(Op),
    Word(String),
    Quoted(String),
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open => write!(f, "\"(\""),
            Self::Close => write!(f, "\")\""),
            Self::Op(op) => write!(f, "the comparison {op:?}"),
            Self::Word(text) | Self::Quoted(text) => write!(f, "{text:?}"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let or_equal = |rest: &mut std::iter::Peekable<std::str::Chars<'_>>, both, one| {
            Token::Op(if rest.next_if_eq(&'=').is_some() { both } else { one })
        };
        tokens.push(match c {
            c if c.is_whitespace() => continue,
            '(' => Token::Open,
            ')' => Token::Close,
            '<' => or_equal(&mut rest, Op::AtMost, Op::Less),
            '>' => or_equal(&mut rest, Op::AtLeast, Op::Greater),
            '=' => Token::Op(Op::Equals),
            ':' => Token::Op(Op::Has),
            '!' if rest.next_if_eq(&'=').is_some() => Token::Op(Op::Differs),
            '!' => return Err(bad("\"!\" is not followed by \"=\"")),
            '"' => {
                let mut quoted = String::new();
                loop {
                    match rest.next() {
                        Some('"') => break,
                        Some('\\') => quoted.extend(rest.next()),
                        Some(c) => quoted.push(c),
                        None => return Err(bad("a quote is not closed")),
                    }
                }
                Token::Quoted(quoted)
            }
            first => {
                let mut word = String::from(first);
                // A time has colons, and stands behind a comparison; a field stands before one.
                let behind = matches!(tokens.last(), Some(Token::Op(_)));
                let ends = |c: &char| {
                    c.is_whitespace()
                        || matches!(c, '(' | ')' | '"')
                        || (!behind && matches!(c, '<' | '>' | '=' | '!' | ':'))
                };
                while let Some(c) = rest.next_if(|c| !ends(c)) {
                    word.push(c);
                }
                Token::Word(word)
            }
        });
    }
    Ok(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn takes_word(&mut self, word: &str) -> bool {
        // A field of such a name would be followed by a comparison.
        let is_operator = matches!(self.peek(), Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
            && !matches!(self.tokens.get(self.at + 1), Some(Token::Op(_)));
        self.at += usize::from(is_operator);
        is_operator
    }

    fn all(&mut self) -> Result<Filter> {
        let mut parts = vec![self.any()?];
        while self.takes_word("AND") || !matches!(self.peek(), None | Some(Token::Close)) {
            parts.push(self.any()?);
        }
        Ok(one_or(parts, Filter::All))
    }

    fn any(&mut self) -> Result<Filter> {
        let mut parts = vec![self.one()?];
        while self.takes_word("OR") {
            parts.push(self.one()?);
        }
        Ok(one_or(parts, Filter::Any))
    }

    fn one(&mut self) -> Result<Filter> {
        if self.depth >= BACKUP_FILTER_DEPTH_MAX {
            return Err(bad(format!("it is nested more than {BACKUP_FILTER_DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let filter = self.one_within();
        self.depth -= 1;
        filter
    }

    fn one_within(&mut self) -> Result<Filter> {
        if self.takes_word("NOT") {
            return Ok(Filter::Not(Box::new(self.one()?)));
        }
        match self.next() {
            Some(Token::Open) => {
                let inner = self.all()?;
                match self.next() {
                    Some(Token::Close) => Ok(inner),
                    _ => Err(bad("a parenthesis is not closed")),
                }
            }
            Some(Token::Word(name)) => self.comparison(&name),
            Some(token) => Err(bad(format!("{token} is not expected there"))),
            None => Err(bad("it ends where a comparison is expected")),
        }
    }

    fn comparison(&mut self, name: &str) -> Result<Filter> {
        let field = Field::parse(name).ok_or_else(|| {
            bad(format!(
                "{name:?} is not one of name, source_table, state, start_time, end_time, expire_time, \
                 size_bytes"
            ))
        })?;
        let Some(Token::Op(op)) = self.next() else {
            return Err(bad(format!("{name} is not followed by one of < > <= >= != = :")));
        };
        let value = match self.next() {
            Some(Token::Word(text)) => field.value(&text, false)?,
            Some(Token::Quoted(text)) => field.value(&text, true)?,
            _ => return Err(bad(format!("{name} is not compared with anything"))),
        };
        if field == Field::State && !matches!(op, Op::Equals | Op::Differs | Op::Has) {
            return Err(bad("a state is compared with =, != or :"));
        }
        Ok(Filter::Is(field, op, value))
    }
}

fn one_or(mut parts: Vec<Filter>, many: fn(Vec<Filter>) -> Filter) -> Filter {
    match parts.pop() {
        Some(one) if parts.is_empty() => one,
        last => {
            parts.extend(last);
            many(parts)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backup() -> Backup {
        let at = |text: &str| Some(text.parse().unwrap());
        Backup {
            name: "projects/p/instances/i/clusters/c/backups/Howl-1".to_owned(),
            source_table: "projects/p/instances/i/tables/prod".to_owned(),
            state: State::Ready.into(),
            start_time: at("2018-03-28T14:00:00Z"),
            end_time: at("2018-03-28T14:10:00Z"),
            expire_time: at("2018-04-28T14:00:00Z"),
            size_bytes: 500,
            ..Backup::default()
        }
    }

    #[test]
    fn documented_filters_do_what_they_say() {
        for (filter, admits) in [
            ("", true),
            ("name:howl", true),
            ("name:owl", true),
            ("name:\"howl\"", false),
            ("name:\"howl-1\"", true),
            ("name = \"projects/p/instances/i/clusters/c/backups/howl-1\"", true),
            ("name != howl-1", false),
            ("name > a", true),
            ("name < a", false),
            ("source_table:prod", true),
            ("source_table=tables", false),
            ("state:READY", true),
            ("state:creating", false),
            ("STATE != CREATING", true),
            ("(name:howl) AND (start_time < \"2018-03-28T14:50:00Z\")", true),
            ("start_time < 2018-03-28T14:50:00Z", true),
            ("(name:howl) (start_time > 2018-03-28T14:50:00Z)", false),
            ("end_time>=2018-03-28T14:10:00Z end_time<=2018-03-28T14:10:00Z", true),
            ("expire_time = 2018-04-28T14:00:00Z", true),
            ("size_bytes > 10000000000", false),
            ("size_bytes<=500", true),
            ("NOT name:howl", false),
            ("not (name:x or size_bytes=1)", true),
            ("name:x OR name:howl", true),
            // OR before AND.
            ("size_bytes=1 AND name:x OR name:howl", false),
            ("(size_bytes=1 AND name:x) OR name:howl", true),
        ] {
            let parsed = Filter::parse(filter).unwrap_or_else(|e| panic!("{filter}: {e}"));
            assert_eq!(parsed.admits(&backup()), admits, "{filter}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused_and_the_text_says_why() {
        let deep = format!("{}name:x{}", "(".repeat(100), ")".repeat(100));
        let nots = format!("{}name:x", "NOT ".repeat(100));
        let long = "x".repeat(BACKUP_FILTER_CHARS_MAX + 1);
        for (filter, why) in [
            ("name", "not followed by"),
            ("name:", "not compared"),
            ("name:(x)", "not compared"),
            ("color:red", "not one of"),
            ("size_bytes > big", "number of bytes"),
            ("start_time > yesterday", "YYYY-MM-DDTHH:MM:SSZ"),
            ("state < READY", "=, != or :"),
            ("state:GONE", "CREATING or READY"),
            ("(name:x", "not closed"),
            ("name:\"x", "not closed"),
            ("name:x)", "not expected"),
            ("name:x OR", "ends where"),
            ("name ! x", "followed by"),
            ("\"name\":x", "not expected"),
            (&deep, "nested"),
            (&nots, "nested"),
            (&long, "longer"),
        ] {
            let error = Filter::parse(filter).unwrap_err();
            assert!(error.message().starts_with("filter: "), "{error}");
            assert!(error.message().contains(why), "{filter}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}", mixed in "[()<>=!:\" a-zNOTAD-]{0,60}") {
            for text in [text, mixed] {
                if let Ok(filter) = Filter::parse(&text) {
                    filter.admits(&backup());
                }
            }
        }
    }
}
