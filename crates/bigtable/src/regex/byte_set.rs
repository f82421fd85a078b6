//! A set of bytes, as character classes denote them.
//!
//! RE2 in Latin-1 mode reads each byte as the Unicode character of the same number. So a class is a set
//! of the 256 bytes. Case folding pairs the letters of ASCII alone, as RE2 does in this mode.

use std::collections::HashMap;

use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, HirKind};

/// A set of bytes; bit `b % 64` of word `b / 64` says whether byte `b` is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) fn all() -> Self {
        Self([u64::MAX; 4])
    }

    pub(super) fn one(byte: u8) -> Self {
        let mut set = Self::default();
        set.insert(byte);
        set
    }

    /// The bytes of inclusive ranges.
    pub(super) fn of(ranges: &[(u8, u8)]) -> Self {
        let mut set = Self::default();
        for &(first, last) in ranges {
            for byte in first..=last {
                set.insert(byte);
            }
        }
        set
    }

    pub(super) fn insert(&mut self, byte: u8) {
        if let Some(word) = self.0.get_mut(usize::from(byte / 64)) {
            *word |= 1 << (byte % 64);
        }
    }

    pub(super) fn remove(&mut self, byte: u8) {
        if let Some(word) = self.0.get_mut(usize::from(byte / 64)) {
            *word &= !(1 << (byte % 64));
        }
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte / 64)).is_some_and(|word| word & (1 << (byte % 64)) != 0)
    }

    pub(super) fn union(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    pub(super) fn complement(self) -> Self {
        Self(self.0.map(|word| !word))
    }

    /// The set with the other case of each of its letters.
    pub(super) fn folded(self) -> Self {
        let mut set = self;
        for byte in 0..=u8::MAX {
            if self.contains(byte) {
                set.insert(other_case(byte));
            }
        }
        set
    }

    /// The set as a node of a pattern.
    pub(super) fn to_hir(self) -> Hir {
        let mut ranges = Vec::new();
        let mut open: Option<(u8, u8)> = None;
        for byte in (0..=u8::MAX).filter(|b| self.contains(*b)) {
            open = match open {
                Some((first, last)) if last.checked_add(1) == Some(byte) => Some((first, byte)),
                previous => {
                    ranges.extend(previous);
                    Some((byte, byte))
                }
            };
        }
        ranges.extend(open);
        let ranges = ranges.into_iter().map(|(first, last)| ClassBytesRange::new(first, last));
        Hir::class(Class::Bytes(ClassBytes::new(ranges)))
    }
}

/// The same letter in the other case, where it is one of ASCII; the byte itself otherwise.
fn other_case(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' => byte + 0x20,
        b'a'..=b'z' => byte - 0x20,
        _ => byte,
    }
}

/// `\d`, `\s`, `\w` by their letter. `\s` has no vertical tab, as in RE2.
pub(super) fn perl(letter: u8) -> Option<ByteSet> {
    Some(match letter {
        b'd' => ByteSet::of(&[(b'0', b'9')]),
        b's' => ByteSet::of(&[(b'\t', b'\n'), (0x0C, b'\r'), (b' ', b' ')]),
        b'w' => ByteSet::of(&[(b'0', b'9'), (b'A', b'Z'), (b'_', b'_'), (b'a', b'z')]),
        _ => return None,
    })
}

/// `[:name:]`.
pub(super) fn posix(name: &[u8]) -> Option<ByteSet> {
    let ranges: &[(u8, u8)] = match name {
        b"alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        b"ascii" => &[(0x00, 0x7F)],
        b"blank" => &[(b'\t', b'\t'), (b' ', b' ')],
        b"cntrl" => &[(0x00, 0x1F), (0x7F, 0x7F)],
        b"digit" => &[(b'0', b'9')],
        b"graph" => &[(b'!', b'~')],
        b"lower" => &[(b'a', b'z')],
        b"print" => &[(b' ', b'~')],
        b"punct" => &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        b"space" => &[(b'\t', b'\r'), (b' ', b' ')],
        b"upper" => &[(b'A', b'Z')],
        b"word" => &[(b'0', b'9'), (b'A', b'Z'), (b'_', b'_'), (b'a', b'z')],
        b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return None,
    };
    Some(ByteSet::of(ranges))
}

/// Unicode classes of one filter by their names, each looked up once: those of a name are hundreds of ranges, and a filter has room for
/// thousands of names.
#[derive(Debug, Default)]
pub(super) struct UnicodeClasses(HashMap<Vec<u8>, ByteSet>);

impl UnicodeClasses {
    /// The Latin-1 characters of a Unicode category or script, as `\p{name}` denotes them.
    pub(super) fn get(&mut self, name: &[u8]) -> Option<ByteSet> {
        if let Some(known) = self.0.get(name) {
            return Some(*known);
        }
        let set = unicode(name)?;
        self.0.insert(name.to_vec(), set);
        Some(set)
    }
}

/// General categories by the names that RE2 knows.
const CATEGORIES: &str = "\
    C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs";

/// Scripts by the names that RE2 knows.
const SCRIPTS: &str = "\
    Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki \
    Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee \
    Chorasmian Common Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan \
    Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi \
    Gurmukhi Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited \
    Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi \
    Khitan_Small_Script Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian \
    Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui \
    Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean Nag_Mundari \
    Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Old_Hungarian Old_Italic \
    Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage \
    Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan \
    Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri \
    Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh \
    Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square";

fn names() -> impl Iterator<Item = &'static str> {
    CATEGORIES.split(' ').chain(SCRIPTS.split(' '))
}

fn unicode(name: &[u8]) -> Option<ByteSet> {
    let name = std::str::from_utf8(name).ok()?;
    if name == "Any" {
        return Some(ByteSet::all());
    }
    // The other syntax knows more names, and more ways to write these.
    names().find(|known| *known == name)?;
    let hir = regex_syntax::parse(&format!(r"\p{{{name}}}")).ok();
    let Some(HirKind::Class(Class::Unicode(class))) = hir.as_ref().map(Hir::kind) else {
        // Surrogates, which are no text there, or a single character, such as the one of `Zl`. None of these is in Latin-1.
        return Some(ByteSet::default());
    };
    // They are sorted: what follows the first that starts beyond Latin-1 lies beyond it too.
    let ranges = class.iter().map_while(|range| {
        let last = u8::try_from(range.end()).unwrap_or(u8::MAX);
        u8::try_from(range.start()).ok().map(|first| (first, last))
    });
    Some(ByteSet::of(&ranges.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(set: ByteSet) -> Vec<u8> {
        (0..=u8::MAX).filter(|b| set.contains(*b)).collect()
    }

    #[test]
    fn folding_pairs_letters_of_ascii_alone() {
        assert_eq!(bytes(ByteSet::one(b'k').folded()), b"Kk");
        for alone in [0xB5, 0xC9, 0xD7, 0xDF, 0xE9, 0xF7, 0xFF, b'1', b'['] {
            assert_eq!(bytes(ByteSet::one(alone).folded()), [alone]);
        }
        for byte in 0..=u8::MAX {
            assert_eq!(other_case(other_case(byte)), byte);
        }
    }

    #[test]
    fn unicode_classes_keep_their_latin_1_part() {
        let upper = unicode(b"Lu").unwrap();
        assert!(upper.contains(b'A') && upper.contains(0xC9) && !upper.contains(b'a'));
        assert!(!upper.contains(0xD7));
        assert_eq!(unicode(b"Cyrillic").unwrap(), ByteSet::default());
        assert_eq!(unicode(b"Any").unwrap(), ByteSet::all());
        for name in
            [&b""[..], b"Nope", b"L}|a{", b"L u", b"lu", b"Letter", b"Alphabetic", b"ASCII", b"Cn"]
        {
            assert!(unicode(name).is_none(), "{}", name.escape_ascii());
        }
        let unknown =
            names().filter(|name| regex_syntax::parse(&format!(r"\p{{{name}}}")).is_err());
        assert_eq!(unknown.collect::<Vec<_>>(), ["Cs"]);
    }

    #[test]
    fn complement_and_union_cover_all() {
        let digits = perl(b'd').unwrap();
        let mut all = digits.complement();
        assert!(!all.contains(b'5') && all.contains(0xFF));
        all.union(&digits);
        assert_eq!(all, ByteSet::all());
        all.remove(b'\n');
        assert_eq!(bytes(all.complement()), b"\n");
    }
}
