use proptest::prelude::*;

use super::*;

fn compile(pattern: &[u8]) -> Regex {
    Regex::compile(pattern, &mut Budget::default())
        .unwrap_or_else(|e| panic!("{}: {e}", pattern.escape_ascii()))
}

fn refusal(pattern: &[u8]) -> String {
    match Regex::compile(pattern, &mut Budget::default()) {
        Ok(_) => panic!("{} was accepted", pattern.escape_ascii()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn patterns_match_the_whole_text() {
    let section = "a§b".as_bytes();
    let cases: &[(&[u8], &[u8], bool)] = &[
        (b"", b"", true),
        (b"", b"a", false),
        (b"row", b"row", true),
        (b"ro", b"row", false),
        (b"ow", b"row", false),
        (b"ROW", b"row", false),
        (b"r|row", b"row", true),
        (b"|a", b"", true),
        (b"|a", b"a", true),
        (b"|a", b"b", false),
        (b"a||b", b"", true),
        // Braces with what is no number of RE2's are text.
        (b"a{0,02}", b"a{0,02}", true),
        (b"a{0,02}", b"aa", false),
        (b"a{0,x}", b"a{0,x}", true),
        (b"a{1,}", b"aa", true),
        (b"()", b"", true),
        // The dot and newlines.
        (b".*", b"a\nb", false),
        (b"(?s).*", b"a\nb", true),
        (b"(?s:.)a.", b"\na\n", false),
        (br"\C*", b"a\nb\xFF\0", true),
        (br"a\C*", b"a\nb", true),
        (br"a\C*", b"b\na", false),
        (br"\C{4}", section, true),
        (b"[^a]", b"\n", true),
        (br"\n", b"\n", true),
        // Bytes that are no ASCII: in the pattern, escaped, and as classes.
        (section, section, true),
        (br"a\xC2\xA7b", section, true),
        (br"a\xC2.+", section, true),
        (br"a\xC2\C{2}", section, true),
        (".*§.*".as_bytes(), section, true),
        (".§b".as_bytes(), section, true),
        ("§b".as_bytes(), section, false),
        (b"\xFF\xFE+", b"\xFF\xFE\xFE", true),
        (br"\x80*", b"\x80\x80", true),
        (br"\x80", b"\x80\x80", false),
        (br"[\x7f\x80]{2}", b"\x80\x7f", true),
        (br"\x{fF}", b"\xFF", true),
        (b"[\x80-\xFF]+", b"\xC2\xA7", true),
        (b".", b"\xA7", true),
        (b"\0", b"\0", true),
        (br"a\0", b"a\0", true),
        // Escapes.
        (br"\a\f\t\n\r\v", b"\x07\x0C\t\n\r\x0B", true),
        (br"\07\101\12", b"\x07A\n", true),
        (br"\1234", b"S4", true),
        (br"\.\*\_\-\ ", b".*_- ", true),
        (br"\d\D\s\S\w\W", b"1a b_-", true),
        (br"\s", b"\x0B", false),
        (b"[[:space:]]", b"\x0B", true),
        (br"\w", b"\xE9", false),
        (br"\Qa.b*\E+", b"a.b**", true),
        (br"\Qa.b", b"a.b", true),
        (br"\Qa\\Eb", b"a\\b", true),
        (br"a\Q\E*", b"aaa", true),
        // Unicode classes are their Latin-1 part.
        (br"\pL\PL", b"\xE91", true),
        (br"\p{Lu}\P{Lu}\p{^Lu}", b"Aaa", true),
        (br"\pN", b"\xB2", true),
        (br"[\p{Ll}\d]+", b"a1\xE9", true),
        (br"\p{Cyrillic}", b"a", false),
        // Classes are RE2's: no set operations, no nesting.
        (b"[]a]+", b"]a", true),
        (b"[^]a]", b"b", true),
        (b"[^]a]", b"]", false),
        (b"[a-]+", b"a-", true),
        (b"[-a]+", b"a-", true),
        (b"[a&&b]+", b"a&b", true),
        (b"[+--]+", b"+,-", true),
        (b"[a[b]+", b"a[b", true),
        (b"[[:digit:]x[:^alnum:]]+", b"1x-", true),
        (b"[[:digit:]x]+", b"y", false),
        (b"[[:x]+", b"[:x", true),
        (br"[\]\-\\]+", b"]-\\", true),
        (br"[\101-C]+", b"ABC", true),
        // Case.
        (b"(?i)RoW", b"rOw", true),
        (b"(?i:R)ow", b"row", true),
        (b"(?i:R)ow", b"rOw", false),
        (b"a(?i)b|c", b"C", true),
        (b"(a(?i)b)c", b"aBC", false),
        (b"(?i)(?-i)a", b"A", false),
        (b"(?i)\xE9", b"\xC9", false),
        (br"(?i)[\xC0-\xD6]", b"\xE9", false),
        (br"(?i)[\P{Lu}]+", b"\xE9", true),
        (b"(?i)[a-c]+", b"AbC", true),
        (b"(?i)[^a]", b"A", false),
        (b"(?i)[[:^lower:]]", b"A", false),
        (br"(?i)\Qk\E", b"K", true),
        // Anchors.
        (b"^a$", b"a", true),
        (br"\Aa\z", b"a", true),
        (b"a^b", b"ab", false),
        (b"a\n^b", b"a\nb", false),
        (b"(?m)a$\n^b", b"a\nb", true),
        (b"(?m)a$", b"a\n", false),
        (br"a\b.b", b"a b", true),
        (br"a\Bb", b"ab", true),
        (b"^*a", b"a", true),
        // Repetition.
        (b"a{2}", b"aa", true),
        (b"a{2}", b"aaa", false),
        (b"a{2,}", b"aaaa", true),
        (b"a{2,3}?", b"aaa", true),
        (b"a{0}", b"", true),
        (b"a{,2}", b"a{,2}", true),
        (b"a{x}", b"a{x}", true),
        (b"{", b"{", true),
        (b"a{1", b"a{1", true),
        (b"a{01}", b"a{01}", true),
        (b"a+?b*?c??", b"aab", true),
        (b"(?U)a+", b"aa", true),
        (b"(?P<name>a)(?<other>b)", b"ab", true),
        (b"(?P<a>b)(?P<a>c)", b"bc", true),
        (b"(?:ab)+", b"abab", true),
        (b"]", b"]", true),
        (b"}", b"}", true),
        (b"(a*)*", b"aaa", true),
        (b"(a|ab)(c|bcd)", b"abcd", true),
    ];
    for (pattern, text, want) in cases {
        assert_eq!(
            compile(pattern).is_match(text),
            *want,
            "{} on {}",
            pattern.escape_ascii(),
            text.escape_ascii()
        );
    }
}

#[test]
fn what_re2_refuses_is_refused_with_its_words() {
    let cases: &[(&[u8], &str)] = &[
        (b"[", "missing ]: ["),
        (b"a[b", "missing ]: [b"),
        (b"[]", "missing ]: []"),
        (b"[a-", "missing ]: [a-"),
        (b"(", "missing ): ("),
        (b"(a", "missing ): (a"),
        (b"(?i", "missing ): (?i"),
        (b"a)", "unexpected ): a)"),
        (b"*", "no argument for repetition operator: *"),
        (b"a|+", "no argument for repetition operator: +"),
        (b"(?:?)", "no argument for repetition operator: ?"),
        (b"{2}", "no argument for repetition operator: {2}"),
        (b"a**", "bad repetition operator: **"),
        (b"a*?+", "bad repetition operator: *?+"),
        (b"a{2}{3}", "bad repetition operator: {2}{3}"),
        (b"a{2,1}", "invalid repetition size: {2,1}"),
        (b"a{1001}", "invalid repetition size: {1001}"),
        (b"a{99999999999}", "invalid repetition size: {99999999999}"),
        (b"(a{100}){11}", "invalid repetition size: {11}"),
        (br"a\", r"trailing \ at end of pattern: a\\"),
        (br"\1", r"invalid escape sequence: \\1"),
        (br"(a)\1", r"invalid escape sequence: \\1"),
        (br"\8", r"invalid escape sequence: \\8"),
        (br"\777", r"invalid escape sequence: \\777"),
        (br"\xC.", r"invalid escape sequence: \\xC."),
        (br"\x{100}", r"invalid escape sequence: \\x{100"),
        (br"\x{}", r"invalid escape sequence: \\x{}"),
        (br"\Z", r"invalid escape sequence: \\Z"),
        (br"\q", r"invalid escape sequence: \\q"),
        (br"\E", r"invalid escape sequence: \\E"),
        (b"\\\xE9", r"invalid escape sequence: \\\xe9"),
        (br"[\C]", r"invalid escape sequence: \\C"),
        (br"[a-\d]", r"invalid escape sequence: \\d"),
        (b"[a--b]", "invalid character class range: a--"),
        (b"[b-a]", "invalid character class range: b-a"),
        (b"[[:nope:]]", "invalid character class range: [:nope:]"),
        (br"\p{Nope}", r"invalid character class range: \\p{Nope}"),
        (br"\p{Alphabetic}", r"invalid character class range: \\p{Alphabetic}"),
        (br"\p{greek}", r"invalid character class range: \\p{greek}"),
        (br"\p{Lu", r"invalid character class range: \\p{Lu"),
        (br"\p", r"invalid character class range: \\p"),
        (b"a(?=b)", "invalid perl operator: (?="),
        (b"a(?!b)", "invalid perl operator: (?!"),
        (b"(?<=a)b", "invalid perl operator: (?<="),
        (b"(?<!a)b", "invalid perl operator: (?<!"),
        (b"(?x)a", "invalid perl operator: (?x"),
        (b"(?i-)a", "invalid perl operator: (?i-)"),
        (b"(?P=a)", "invalid perl operator: (?P"),
        (b"(?P<>a)", "invalid named capture group: (?P<"),
        (b"(?P<a b>c)", "invalid named capture group: (?P<a"),
    ];
    for (pattern, want) in cases {
        assert_eq!(&refusal(pattern), want, "{}", pattern.escape_ascii());
    }
}

#[test]
fn many_operators_on_one_part_are_as_few_as_tell_the_same() {
    // What stands between them is nothing that is matched, so that none is right after another.
    for nothing in [&b"(?)"[..], b"(?i)", br"\Q\E"] {
        let chain = |part: &[u8], operators: &[&[u8]]| {
            let operators = operators.iter().cycle().take(6_000);
            let rest = operators.flat_map(|operator| [nothing, operator]).flatten().copied();
            compile(&part.iter().copied().chain(rest).collect::<Vec<u8>>())
        };
        let counts: &[&[u8]] = &[b"{0,1}", b"{1,}", b"{0,}", b"{1}"];
        for operators in [&[&b"*"[..]][..], &[b"?", b"+"], &[b"+", b"*?", b"??"], counts] {
            let regex = chain(b"ab*", operators);
            assert!(regex.is_match(b"a") && regex.is_match(b"abbb"));
            assert!(!regex.is_match(b"aa") && !regex.is_match(b""));
            let regex = chain(b"^*a|^", operators);
            assert!(regex.is_match(b"a") && regex.is_match(b"") && !regex.is_match(b"aa"));
        }
        let (some, once) = (chain(b"a", &[b"+"]), chain(b"a", &[b"?"]));
        assert!(some.is_match(b"aa") && !some.is_match(b""));
        assert!(once.is_match(b"") && once.is_match(b"a") && !once.is_match(b"aa"));
    }
    assert!(compile(b"(a+)?").is_match(b"") && compile(b"(a?)+").is_match(b"aa"));
}

#[test]
fn messages_quote_no_more_than_a_line() {
    let message = refusal(&[&[b'('; 1][..], &[b'a'; 10_000]].concat());
    assert!(message.len() < 60, "{message}");
}

#[test]
fn deep_groups_are_refused_before_the_stack_ends() {
    let nested = |levels: usize| [vec![b'('; levels], b"a".to_vec(), vec![b')'; levels]].concat();
    assert!(compile(&nested(250)).is_match(b"a"));
    assert!(refusal(&nested(251)).starts_with("groups nest deeper than 250 levels"));
    assert!(refusal(&nested(10_000)).starts_with("groups nest deeper"));
    let starred = [b"(?:".repeat(250), b"a|b".to_vec(), b")*x".repeat(250)].concat();
    assert!(compile(&starred).is_match(&[b'x'; 1]));
}

#[test]
fn automata_of_one_request_share_a_budget() {
    let mut budget = Budget::default();
    let mut compiled = 0;
    let error = loop {
        match Regex::compile(format!(r"\pL{{900}}x{compiled}").as_bytes(), &mut budget) {
            Ok(_) => compiled += 1,
            Err(error) => break error,
        }
    };
    assert!(compiled > 3 && compiled < 1000, "{compiled}");
    let message = format!(r"pattern too large - compile failed: \\pL{{900}}x{compiled}");
    assert_eq!(error.to_string(), message);
    assert!(Regex::compile(b"abc|abd", &mut budget).is_ok(), "texts need no automaton");
}

#[test]
fn a_pattern_that_a_request_repeats_takes_its_automaton_once() {
    let mut budget = Budget::default();
    for _ in 0..10_000 {
        Regex::compile(br"\pL{900}x", &mut budget).unwrap();
    }
}

#[test]
fn caches_of_many_patterns_share_what_a_request_has() {
    let mut budget = Budget::default();
    let text = noise(2_000);
    let mut held = 0;
    for n in 0..300 {
        let pattern = format!(r"\C*[\x00-\x7F]\C{{40}}{n}");
        let regex = Regex::compile(pattern.as_bytes(), &mut budget).unwrap();
        assert!(!regex.is_match(&text));
        let Matcher::Automaton(automaton) = &regex.matcher else { panic!("{pattern}") };
        held += automaton.cache_bytes();
    }
    assert!((512 << 10..6 << 20).contains(&held), "{held}");
    let kept = budget.kept();
    assert_eq!(kept.cache_bytes(), held);
    assert!(kept.bytes() > held && kept.bytes() < held + REGEX_BYTES_MAX, "{}", kept.bytes());
    kept.forget();
    assert_eq!(kept.cache_bytes(), 0);
}

#[test]
fn what_a_pattern_keeps_is_known_when_it_is_compiled() {
    let text = noise(20_000);
    for pattern in [
        r"\C*[\x00-\x7F]\C{300}",
        r"(?s)[a-z]{3,60}[0-9]{3,60}.*",
        r"(?s).*(\pL{20}|\pN{30}).*",
        r"(a|b|c|d)*x{0,900}",
    ] {
        let mut budget = Budget::default();
        let regex = Regex::compile(pattern.as_bytes(), &mut budget).unwrap();
        let kept = budget.kept();
        let compiled = kept.bytes();
        for len in [0, 1, 10, 100, text.len()] {
            regex.is_match(&text[..len]);
        }
        // A state more than there is room for may be there at the end.
        assert!(kept.cache_bytes() <= compiled, "{pattern}: {} of {compiled}", kept.cache_bytes());
        let matched = regex.is_match(&text);
        kept.forget();
        assert_eq!(regex.is_match(&text), matched, "{pattern}: it is built again");
    }
    let kept = |pattern: &str| {
        let mut budget = Budget::default();
        Regex::compile(pattern.as_bytes(), &mut budget).unwrap();
        budget.kept().bytes()
    };
    for pattern in [r"\C*", "abc", r"abc\C*"] {
        assert!(kept(pattern) < 200, "{pattern}: {}", kept(pattern));
    }
    // Those that are common.
    for pattern in [".*foo.*", "user-[0-9]+", r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,4}"] {
        assert!(kept(pattern) <= 48 << 10, "{pattern}: {}", kept(pattern));
    }
    // Texts are several times as large as a class of them.
    assert!(kept("[0-~]x") > 4_000, "{}", kept("[0-~]x"));
}

#[test]
fn simple_patterns_need_no_automaton() {
    for (pattern, shape) in [
        (&br"\C*"[..], "Regex(any)"),
        (br"(?s).*", "Regex(any)"),
        (br"(?:\C*)", "Regex(any)"),
        (br"a\.b", r#"Regex([b"a.b"])"#),
        (br"\Qx|y\E", r#"Regex([b"x|y"])"#),
        (b"", r#"Regex([b""])"#),
        (b"b|a|ca?", r#"Regex([b"a", b"b", b"c", b"ca"])"#),
        (b"(?i)ab", r#"Regex([b"AB", b"Ab", b"aB", b"ab"])"#),
        (b"[^\\x00-\\xff]", "Regex([])"),
        (br"user#\C*", r#"Regex(b"user#"..)"#),
        (b"user#.*", "Regex(automaton)"),
        (b"^a", "Regex(automaton)"),
    ] {
        assert_eq!(format!("{:?}", compile(pattern)), shape, "{}", pattern.escape_ascii());
    }
}

#[test]
fn candidates_name_what_a_read_must_touch() {
    let of = |texts: &[&'static str], prefixes: &[&'static str], exact| Candidates::Of {
        texts: texts.iter().map(|t| Bytes::from_static(t.as_bytes())).collect(),
        prefixes: prefixes.iter().map(|t| Bytes::from_static(t.as_bytes())).collect(),
        exact,
    };
    assert_eq!(*compile(b"ab.*").candidates(), of(&[], &["ab"], false));
    assert_eq!(*compile(b"ab.*|c").candidates(), of(&["c"], &["ab"], false));
    assert_eq!(*compile(br"ab\C*").candidates(), of(&[], &["ab"], true));
    assert_eq!(*compile(b"x|y").candidates(), of(&["x", "y"], &[], true));
    assert_eq!(*compile(br"x\b").candidates(), of(&["x"], &[], false));
    assert_eq!(*compile(b".*a").candidates(), Candidates::Any);
}

#[test]
fn hostile_patterns_match_in_linear_time() {
    let text = vec![b'a'; 20_000];
    assert!(!compile(b"(a*)*b").is_match(&text));
    assert!(!compile(b"(?:a|aa)+$b").is_match(&text));
    assert!(compile(b"(a?){200}a{200}").is_match(&[b'a'; 200]));
}

#[test]
fn long_lists_of_classes_take_time_in_line_with_their_length() {
    // Minutes, were each class built again, or the rest of the pattern searched for each.
    let unicode = [&b"["[..], &br"\pL".repeat(300_000), b"]x"].concat();
    assert!(compile(&unicode).is_match(b"\xE9x"));
    let posix = [&b"["[..], &b"[:".repeat(500_000), b"a]x"].concat();
    assert!(compile(&posix).is_match(b":x"));
}

/// Bytes of chance.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn a_pattern_that_finds_a_new_state_at_each_byte_is_ended_by_the_steps_that_are_left() {
    let hostile = || compile(br"\C*[\x00-\x7F]\C{99}x");
    let mut steps_left = 100_000;
    assert_eq!(hostile().is_match_within(&noise(100_000), &mut steps_left), None);
    assert_eq!(steps_left, 0);
    // A short text takes less, and leaves the rest.
    let mut steps_left = 100_000;
    assert_eq!(hostile().is_match_within(&noise(100), &mut steps_left), Some(false));
    assert!((10_000..99_000).contains(&steps_left), "{steps_left}");
}

#[test]
fn alternatives_that_are_all_the_same_take_steps_each() {
    let same = format!(r"(?:{})\C", "|".repeat(2_000)).repeat(8);
    let many = compile(format!(r"\C*[\x00-\x7f]{same}").as_bytes());
    let one = compile(br"\C*[\x00-\x7f]\C{8}");
    let taken = |regex: &Regex| {
        let mut steps_left = u64::MAX;
        regex.is_match_within(&noise(100), &mut steps_left).unwrap();
        u64::MAX - steps_left
    };
    assert!(taken(&many) > 100 * taken(&one), "{} and {}", taken(&many), taken(&one));
    assert!(many.weight() > 100 * one.weight());
    // Not built in full, either.
    assert!(matches!(
        compile(format!(r"(?:{}\C)b", "|".repeat(2_000)).as_bytes()).matcher,
        Matcher::Automaton(Automaton::Lazy(_))
    ));
}

#[test]
fn common_patterns_go_through_large_texts_in_few_steps() {
    let words: Vec<String> = (0..50).map(|n| format!("word{n}")).collect();
    let words = format!(r"(?i)\C*({})\C*", words.join("|"));
    for pattern in [&b"(?s).*foo.*"[..], br"\C*[a-z]+@[a-z.]+\.[a-z]{2,8}\C*", words.as_bytes()] {
        let text = [noise(4 << 20), b"foo word7 a@b.com".to_vec()].concat();
        let mut steps_left = 1 << 17;
        assert_eq!(compile(pattern).is_match_within(&text, &mut steps_left), Some(true));
        assert!(steps_left > 1 << 16, "{}: {steps_left} left", pattern.escape_ascii());
    }
}

/// Patterns of a small alphabet, and the same in a form that a plain backtracking matcher reads.
#[derive(Debug, Clone)]
enum Tree {
    Byte(u8),
    Any,
    Class(bool, Vec<u8>),
    Concat(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat(Box<Tree>, u32, Option<u32>),
}

impl Tree {
    fn render(&self) -> String {
        let all = |parts: &[Tree], between: &str| {
            parts.iter().map(Tree::render).collect::<Vec<_>>().join(between)
        };
        match self {
            Tree::Byte(byte) => format!(r"\x{byte:02x}"),
            Tree::Any => r"\C".into(),
            Tree::Class(negated, bytes) => {
                let bytes: Vec<String> = bytes.iter().map(|b| format!(r"\x{b:02X}")).collect();
                let bytes = bytes.concat();
                format!("[{}{bytes}]", if *negated { "^" } else { "" })
            }
            Tree::Concat(parts) => format!("(?:{})", all(parts, "")),
            Tree::Either(parts) => format!("({})", all(parts, "|")),
            Tree::Repeat(part, 0, None) => format!("(?:{})*", part.render()),
            Tree::Repeat(part, min, None) => format!("(?:{}){{{min},}}", part.render()),
            Tree::Repeat(part, min, Some(max)) => format!("(?:{}){{{min},{max}}}", part.render()),
        }
    }

    /// Every position at which a match that starts at `at` can end.
    fn ends(&self, text: &[u8], at: usize) -> Vec<usize> {
        let one = |holds: bool| if holds { vec![at + 1] } else { vec![] };
        let mut ends = match self {
            Tree::Byte(byte) => one(text.get(at) == Some(byte)),
            Tree::Any => one(at < text.len()),
            Tree::Class(negated, bytes) => {
                one(text.get(at).is_some_and(|b| bytes.contains(b) != *negated))
            }
            Tree::Concat(parts) => parts.iter().fold(vec![at], |starts, part| {
                starts.iter().flat_map(|start| part.ends(text, *start)).collect()
            }),
            Tree::Either(parts) => parts.iter().flat_map(|part| part.ends(text, at)).collect(),
            Tree::Repeat(part, min, max) => {
                let rounds = max.unwrap_or(min + text.len() as u32);
                let (mut found, mut starts) = (vec![], vec![at]);
                for round in 0..=rounds {
                    if round >= *min {
                        found.extend_from_slice(&starts);
                    }
                    starts = starts.iter().flat_map(|start| part.ends(text, *start)).collect();
                    starts.sort_unstable();
                    starts.dedup();
                }
                found
            }
        };
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let byte = prop::sample::select(&b"ab\n\xFF"[..]);
    let leaf = prop_oneof![
        4 => byte.clone().prop_map(Tree::Byte),
        1 => Just(Tree::Any),
        1 => (any::<bool>(), prop::collection::vec(byte, 1..3))
            .prop_map(|(negated, bytes)| Tree::Class(negated, bytes)),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Tree::Concat),
            prop::collection::vec(inner.clone(), 1..3).prop_map(Tree::Either),
            (inner, 0..3u32, prop::option::of(0..2u32)).prop_map(|(tree, min, more)| {
                Tree::Repeat(Box::new(tree), min, more.map(|more| min + more))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn matching_agrees_with_a_backtracking_model(
        tree in trees(),
        text in prop::collection::vec(prop::sample::select(&b"ab\n\xFF"[..]), 0..7),
    ) {
        let regex = compile(tree.render().as_bytes());
        let want = tree.ends(&text, 0).contains(&text.len());
        prop_assert_eq!(regex.is_match(&text), want, "{}", tree.render());
        // Too large to be built in full.
        let larger = compile(format!("{}|{}", tree.render(), "x".repeat(40) + "{9}").as_bytes());
        prop_assert_eq!(larger.is_match(&text), want, "{}", tree.render());
        if let Candidates::Of { texts, prefixes, exact } = regex.candidates() {
            let named = texts.iter().any(|t| *t == text)
                || prefixes.iter().any(|p| text.starts_with(p));
            prop_assert!(named || !want, "{} leaves out {:?}", tree.render(), text);
            prop_assert!(want || !named || !exact, "{} is not exact", tree.render());
        }
    }

    #[test]
    fn any_bytes_are_a_pattern_or_a_refusal(
        pattern in prop::collection::vec(any::<u8>(), 0..40),
        text in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        if let Ok(regex) = Regex::compile(&pattern, &mut Budget::default()) {
            regex.is_match(&text);
        }
    }

    #[test]
    fn strings_of_syntax_are_a_pattern_or_a_refusal(pattern in r"[\\()\[\]{}|*+?^$a-c0-2:,QECpPx\-iP<>=!]{0,24}") {
        if let Ok(regex) = Regex::compile(pattern.as_bytes(), &mut Budget::default()) {
            regex.is_match(b"abc");
        }
    }

    #[test]
    fn quoted_bytes_match_themselves_alone(text in prop::collection::vec(any::<u8>(), 0..20)) {
        let pattern: Vec<u8> = text
            .iter()
            .flat_map(|b| if b.is_ascii_alphanumeric() || *b >= 0x80 { vec![*b] } else { vec![b'\\', *b] })
            .collect();
        let regex = compile(&pattern);
        prop_assert!(regex.is_match(&text));
        prop_assert!(!regex.is_match(&[&text[..], b"x"].concat()));
    }
}
