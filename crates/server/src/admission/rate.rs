//! What clients that write in bulk are told of their rate: by which factor to change it now, and when again. They are told
//! where they say that they go by it (`mutate_rows_rate_limit`; batch write flow control), so that they settle below where
//! writes are refused, instead of finding it by refusals.
//!
//! ```text
//! factor
//! 1.3 ┤───╮
//!     │    ╰───╮
//! 1.0 ┤        ╰╮
//!     │         ╰╮
//! 0.7 ┤          ╰───────────
//!     └────────┬──┬─────────┬
//!      idle    │  │         the limit: all writes are refused
//!              │  half of them are
//!              refusing begins
//! ```

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use prost::Message as _;
use tepui_engine::pressure::{Pressure, Priority};

use crate::api::v2::{FeatureFlags, RateLimitInfo};

/// How long a client goes by a factor before it takes the next one: what Google's clients take where they are told nothing, and
/// time for flushes and compactions to show what the last change did.
const PERIOD: Duration = Duration::from_secs(10);

/// The least and the greatest factor. Google's clients go no further by themselves.
const FACTOR_MIN: f64 = 0.7;
const FACTOR_MAX: f64 = 1.3;

/// The share of refused writes from which a client is told to slow down as much as it can be.
const REFUSED_SHARE_MAX: f64 = 0.5;

/// The header in which clients say what they can do: [`FeatureFlags`], in the alphabet of base64 for URLs.
const FEATURES_HEADER: &str = "bigtable-features";

/// Some clients pad and some do not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Whether a client goes by what it is told.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    let header = headers.get(FEATURES_HEADER);
    let flags = header.and_then(|header| BASE64.decode(header.as_bytes()).ok());
    let flags = flags.and_then(|flags| FeatureFlags::decode(flags.as_slice()).ok());
    flags.is_some_and(|flags| flags.mutate_rows_rate_limit || flags.mutate_rows_rate_limit2)
}

/// What a client is told under this pressure of its writes, which have this priority.
pub fn advice(pressure: Pressure, priority: Priority) -> RateLimitInfo {
    let slower = (pressure.refused_share_of(priority) / REFUSED_SHARE_MAX).min(1.0);
    let factor = 1.0 + (FACTOR_MAX - 1.0) * pressure.headroom() - (1.0 - FACTOR_MIN) * slower;
    let period = prost_types::Duration { seconds: PERIOD.as_secs() as i64, nanos: 0 };
    RateLimitInfo { period: Some(period), factor }
}

#[cfg(test)]
mod tests {
    use tepui_engine::pressure::Behind;

    use super::*;

    #[test]
    fn clients_are_told_to_go_faster_until_writes_are_refused_and_then_slower() {
        let of = |level, priority| advice(Pressure { level, behind: Behind::Memory }, priority);
        let factor = |level| of(level, Priority::High).factor;
        assert!((of(0.53125, Priority::Low).factor - 0.7).abs() < 1e-9);
        for (level, expected) in [
            (0.0, 1.3),
            (0.25, 1.15),
            (0.5, 1.0),
            (0.625, 0.7375),
            (0.75, 0.7),
            (1.0, 0.7),
            (9.0, 0.7),
        ] {
            assert!((factor(level) - expected).abs() < 1e-9, "{level}: {}", factor(level));
        }
    }

    #[test]
    fn only_who_says_so_is_told() {
        let wanted = |flags: FeatureFlags, pad: bool| {
            let mut text = base64::engine::general_purpose::URL_SAFE.encode(flags.encode_to_vec());
            if !pad {
                text.retain(|c| c != '=');
            }
            let mut headers = HeaderMap::new();
            headers.insert(FEATURES_HEADER, text.parse().unwrap());
            is_wanted(&headers)
        };
        let none = FeatureFlags { reverse_scans: true, retry_info: true, ..Default::default() };
        for pad in [true, false] {
            assert!(!wanted(none, pad));
            assert!(wanted(FeatureFlags { mutate_rows_rate_limit: true, ..none }, pad));
            assert!(wanted(FeatureFlags { mutate_rows_rate_limit2: true, ..none }, pad));
        }
        for bad in ["", "*", "_____w", "qgEC"] {
            let mut headers = HeaderMap::new();
            headers.insert(FEATURES_HEADER, bad.parse().unwrap());
            assert!(!is_wanted(&headers), "{bad}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
