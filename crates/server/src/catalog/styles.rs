//! Which tables are compacted how: the names, and patterns of names, of the configuration.

use tepui_engine::db::CompactionStyle;

use crate::names;

/// Names and patterns, at most: each is compared with the name of each table that is opened.
const PATTERNS_MAX: usize = 1000;

/// How the tables of a server are compacted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactionStyles {
    /// Of these tables it is tiered, of all others leveled. `*` stands for any characters, also none.
    tiered: Vec<String>,
}

impl CompactionStyles {
    /// Tables of these names, separated by commas, are tiered. The error says what is wrong.
    pub fn tiered(names: &str) -> Result<Self, String> {
        let tiered: Vec<String> =
            names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect();
        if tiered.len() > PATTERNS_MAX {
            return Err(format!(
                "{} names are too many: limit {PATTERNS_MAX}; use patterns",
                tiered.len()
            ));
        }
        match tiered.iter().find(|name| !can_match(name)) {
            Some(wrong) => Err(format!(
                "{wrong:?} is neither the full name of a table (\"projects/p/instances/i/tables/events\") nor a pattern of such names, \
                 which has a \"*\" for any characters (\"projects/*/instances/*/tables/*\", \"*/tables/events\")"
            )),
            None => Ok(Self { tiered }),
        }
    }

    /// That of a table.
    pub fn of(&self, table: &str) -> CompactionStyle {
        if self.tiered.iter().any(|pattern| matches(pattern, table)) {
            CompactionStyle::Tiered
        } else {
            CompactionStyle::Leveled
        }
    }
}

/// Whether this may be the name of a table, or stand for one: what does not would have no effect, without a word.
fn can_match(pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => names::check_table("name", pattern).is_ok(),
        Some((first, _)) => {
            (first.is_empty() || first.starts_with("projects/")) && !pattern.contains("//")
        }
    }
}

/// Whether a name is what a pattern stands for.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    // The last part stands at the end; those between, each at the first place that it can.
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_tiered_whose_name_is_given_or_fits_a_pattern() {
        let name = "projects/p/instances/i/tables/events";
        for (names, tiered) in [
            ("", false),
            (name, true),
            ("projects/p/instances/i/tables/event", false),
            ("projects/p/instances/i/tables/events2", false),
            ("*", true),
            ("*/tables/events", true),
            ("*/tables/event*", true),
            ("projects/*/instances/*/tables/events", true),
            ("projects/*/instances/j/tables/events", false),
            ("*events*events", false),
            ("*/tables/logs, */tables/events", true),
            (" , ", false),
        ] {
            let style = CompactionStyles::tiered(names).unwrap().of(name);
            assert_eq!(style == CompactionStyle::Tiered, tiered, "{names:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_table_is_refused_with_the_form_of_names() {
        for wrong in [
            "events",
            "pageviews",
            "projects/p/instances/i",
            "projects/p/instances/i/tables/",
            "projects/p/instances/i/table/events",
            "projects/p/instances/i/tables/events/",
            "projects/p//tables/events",
            "projects/p//tables/*",
            "*/tables/a, b",
        ] {
            let error = CompactionStyles::tiered(wrong).unwrap_err();
            assert!(error.contains("projects/*/instances/*/tables/*"), "{error}");
        }
        let many = "*a,".repeat(PATTERNS_MAX + 1);
        assert!(CompactionStyles::tiered(&many).unwrap_err().contains("too many"));
    }
}
