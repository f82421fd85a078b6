//! Where quotes and carriage returns may stand in CSV. The crate that reads it takes any: of one stray quote it makes a field that goes on to
//! the next quote, or to the end of the file, with all rows between. This refuses what Go's reader refuses, which is the one of `cbt`.
//!
//! A carriage return without a line feed ends a record to that crate, and is a part of a field to Go's reader. It is refused outside of
//! quotes: what is there is a value that was not quoted, or a file whose lines all end so, and nothing tells one from the other.

/// What may come before the first record and is no part of it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What was last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The end of a record.
    Record,
    /// A comma.
    Comma,
    /// A part of a field without quotes.
    Plain,
    /// A part of a field in quotes.
    Quoted,
    /// A quote in such a field: its end, or the first of two.
    Quote,
}

/// Follows a file.
#[derive(Debug)]
pub struct Quotes {
    last: Last,
    line: u64,
    /// Where the record begins.
    record_line: u64,
    /// Bytes of a byte order mark that came so far; none once there was something else.
    mark: Option<usize>,
}

impl Quotes {
    /// At the start of a file.
    pub fn new() -> Self {
        Self { last: Last::Record, line: 1, record_line: 1, mark: Some(0) }
    }

    /// Looks at the next bytes, behind which `ahead` comes: where the last of them is a carriage return, none is the end of the file. At
    /// the first one that may not stand there: how many come before it, and what is wrong.
    pub fn look(&mut self, bytes: &[u8], ahead: Option<u8>) -> Result<(), (usize, String)> {
        for (at, byte) in bytes.iter().enumerate() {
            let next = || bytes.get(at + 1).copied().or(ahead);
            self.byte(*byte, next).map_err(|why| (at, self.wrong(why)))?;
        }
        Ok(())
    }

    /// What is wrong with a file that ends here.
    pub fn end(&self) -> Result<(), String> {
        match self.last {
            Last::Quoted => Err(self.wrong("a quote that is not closed")),
            _ => Ok(()),
        }
    }

    fn wrong(&self, why: &str) -> String {
        format!("line {}: {why}", self.record_line)
    }

    fn byte(&mut self, byte: u8, next: impl Fn() -> Option<u8>) -> Result<(), &'static str> {
        if let Some(seen) = self.mark.take()
            && BYTE_ORDER_MARK.get(seen) == Some(&byte)
        {
            self.mark = Some(seen + 1);
            return Ok(());
        }
        self.last = match (self.last, byte) {
            (Last::Quoted, b'"') => Last::Quote,
            (Last::Quoted, _) | (Last::Quote, b'"') => Last::Quoted,
            (last, b'\r') if next().is_some_and(|next| next != b'\n') => {
                if last == Last::Record {
                    self.record_line = self.line;
                }
                return Err(
                    "a carriage return that ends no line: quote the field that has it, or \
                            convert the file's line ends",
                );
            }
            (_, b'\r' | b'\n') => Last::Record,
            (Last::Quote, b',') => Last::Comma,
            (Last::Quote, _) => return Err("a field goes on behind its closing quote"),
            (Last::Plain, b'"') => return Err("a quote in a field that does not begin with one"),
            (last, byte) => {
                if last == Last::Record {
                    self.record_line = self.line;
                }
                match byte {
                    b',' => Last::Comma,
                    b'"' => Last::Quoted,
                    _ => Last::Plain,
                }
            }
        };
        self.line += u64::from(byte == b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrong(text: &[u8]) -> Option<String> {
        let mut quotes = Quotes::new();
        quotes.look(text, None).map_err(|(_, why)| why).and_then(|()| quotes.end()).err()
    }

    #[test]
    fn what_go_takes_is_taken() {
        for text in [
            &b""[..],
            b"a,b\n",
            b"\"a\",\"b\"\r\n\"c\"",
            b"\"a,\n\"\"\"\"b\",,\"\"\n\n,\"\"",
            b"\xef\xbb\xbf\"a\",b\n",
            b"\"a\rb\",\"\r\"\r\n\r\nc,d\r",
        ] {
            assert_eq!(wrong(text), None, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_quote_that_means_nothing_is_named_by_the_line_of_its_record() {
        for (text, line, word) in [
            (&b"a,b\r\n\r\nc,\"5 inch\r\nd,e\r\n"[..], 3, "not closed"),
            (b"a,\"5 inch\nb,\"c\"\n", 1, "behind its closing quote"),
            (b"a,b\n\"abc\"def,x\n", 2, "behind its closing quote"),
            (b"a,\"b\nc\"\nd,5\" pipe\n", 3, "does not begin with one"),
            (b"a\xef\xbb\xbf\"", 1, "does not begin with one"),
            (b"\"", 1, "not closed"),
            (b"a,b\nc,d\re\n", 2, "carriage return"),
            (b"a,b\nc,d\r\r\n", 2, "carriage return"),
            (b"a,b\n\r\r\n", 2, "carriage return"),
            (b"a,b\n\"c\",\"d\"\re\n", 2, "carriage return"),
            (b",f\r,a\rk,v\r", 1, "convert"),
        ] {
            let why = wrong(text).unwrap();
            assert!(why.starts_with(&format!("line {line}: ")) && why.contains(word), "{why}");
        }
    }

    proptest! {
        /// What is found does not hang on how the bytes come.
        #[test]
        fn pieces_are_as_the_whole(text in "[a\",\r\n]{0,40}", at in 0usize..40) {
            let (first, second) = text.as_bytes().split_at(at.min(text.len()));
            let mut whole = Quotes::new();
            let mut pieces = Quotes::new();
            let found = pieces.look(first, second.first().copied());
            let found = found.and_then(|()| {
                pieces.look(second, None).map_err(|(at, why)| (at + first.len(), why))
            });
            prop_assert_eq!(whole.look(text.as_bytes(), None), found);
            prop_assert_eq!(whole.end(), pieces.end());
        }
    }
}
