//! Reading values: sizes, numbers, truths, and the TOML file as a flat list of keys.

use std::path::Path;

use tepui_bigtable::error::{Error, Result};

/// Tables within tables of a file, at most. The keys have one level; more is a mistake to be named.
const DEPTH_MAX: usize = 8;

/// The suffixes of sizes.
const UNITS: [(&str, u64); 5] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];

/// A size in bytes: a whole number, with or without a unit (`64MiB`, `64 MiB`, `67108864`).
pub fn size(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let trimmed = value.trim();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((trimmed.strip_suffix(suffix)?.trim_end(), *unit)))
        .unwrap_or((trimmed, 1));
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let bytes = bytes.ok_or_else(|| {
        format!("{value:?} is not a size such as \"64MiB\" (units: B, KiB, MiB, GiB, TiB)")
    })?;
    if bytes < min {
        return Err(format!("{value:?} is too small: at least {min} bytes"));
    }
    if bytes > max {
        return Err(format!("{value:?} is too large: at most {max} bytes"));
    }
    Ok(bytes)
}

/// A size as [`size`] reads it, in the largest unit that leaves it whole.
pub fn size_text(bytes: u64) -> String {
    let whole = |(_, unit): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*unit);
    match UNITS.iter().filter(whole).max_by_key(|(_, unit)| *unit) {
        Some((suffix, unit)) => format!("{}{suffix}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// `true` or `false`.
pub fn boolean(value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{value:?} is neither true nor false"))
}

/// A whole number from `min` to `max`.
pub fn whole_number(value: &str, min: usize, max: usize) -> Result<usize, String> {
    let number = value.parse::<usize>().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{value:?} is not a whole number from {min} to {max}"))
}

/// A key of a file by its full name, and its value as text or what is wrong with its kind.
pub type FileKey = (String, Result<String, String>);

/// All keys of a TOML text.
pub fn flatten_toml(path: &Path, text: &str) -> Result<Vec<FileKey>> {
    let table: toml::Table = toml::from_str(text)
        .map_err(|error| Error::invalid_argument(format!("{}: {error}", path.display())))?;
    let mut out = Vec::new();
    flatten("", table, DEPTH_MAX, &mut out);
    Ok(out)
}

fn flatten(prefix: &str, table: toml::Table, depth: usize, out: &mut Vec<FileKey>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        let text = match value {
            toml::Value::Table(inner) if depth > 0 => {
                flatten(&name, inner, depth - 1, out);
                continue;
            }
            toml::Value::String(text) => Ok(text),
            toml::Value::Integer(number) => Ok(number.to_string()),
            toml::Value::Boolean(truth) => Ok(truth.to_string()),
            toml::Value::Array(_) => {
                Err("an array is not a value of this key: keys of several values take one string, with commas between them".to_owned())
            }
            other => Err(format!("{} is not a value of this key", with_article(other.type_str()))),
        };
        out.push((name, text));
    }
}

fn with_article(word: &str) -> String {
    let article = if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("64MiB", 64 << 20),
            (" 64 MiB ", 64 << 20),
            ("2GiB", 2 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(size(text, 0, u64::MAX), Ok(bytes), "{text}");
        }
        for bad in ["", "MiB", "64MB", "1.5GiB", "-1", "99999999999TiB", "64 parsecs"] {
            assert!(size(bad, 0, u64::MAX).is_err(), "{bad}");
        }
        assert!(size("1KiB", 1_025, u64::MAX).unwrap_err().contains("at least 1025"));
        assert!(size("1KiB", 0, 1_023).unwrap_err().contains("at most 1023"));
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for (bytes, text) in
            [(0, "0"), (512, "512B"), (64 << 20, "64MiB"), ((1 << 30) + 1, "1073741825B")]
        {
            assert_eq!(size_text(bytes), text);
            assert_eq!(size(text, 0, u64::MAX), Ok(bytes));
        }
    }

    #[test]
    fn numbers_and_truths_are_checked() {
        assert_eq!(whole_number("3", 0, 4), Ok(3));
        assert!(whole_number("5", 0, 4).is_err());
        assert!(whole_number("-1", 0, 4).is_err());
        assert!(whole_number("0", 1, 4).is_err());
        assert_eq!(boolean("true"), Ok(true));
        assert!(boolean("yes").is_err());
    }

    #[test]
    fn nested_keys_are_named_by_their_path() {
        let keys = flatten_toml(Path::new("f"), "a = 1\n[b]\nc = true\n[b.d]\ne = 1.5\n").unwrap();
        let names: Vec<_> =
            keys.iter().map(|(name, value)| (name.as_str(), value.is_ok())).collect();
        assert_eq!(names, [("a", true), ("b.c", true), ("b.d.e", false)]);
    }
}
