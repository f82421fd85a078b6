//! When a backup may expire, and when a hot one becomes a standard one: Bigtable's documented limits; and which times and
//! durations there are.

use std::ops::RangeInclusive;
use std::time::Duration;

use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::limits::DURATION_SECONDS_MAX;

use crate::api::admin::backup::BackupType;
use crate::api::admin::{self};
use crate::limits::{BACKUP_COPY_LIFE_MAX, BACKUP_LIFE_MAX, BACKUP_LIFE_MIN, HOT_BACKUP_LIFE_MIN};

/// The seconds that a timestamp of protobuf may have: of the years 1 to 9999.
const SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Microseconds since 1970 of a timestamp; what lies beyond the range is its end.
pub fn micros(time: &prost_types::Timestamp) -> i64 {
    time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1_000)
}

/// Microseconds since 1970 as a timestamp.
pub fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: micros.rem_euclid(1_000_000) as i32 * 1_000,
    }
}

/// A duration in microseconds.
pub fn length_micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// The time of expiry that a client asks for, for a backup that was made at `made` or a copy of one; it is
/// `now`.
pub fn expiry(
    asked: Option<&prost_types::Timestamp>,
    made_micros: i64,
    now_micros: i64,
    is_copy: bool,
) -> Result<prost_types::Timestamp> {
    let asked = asked.ok_or_else(|| Error::invalid_argument("expire_time must be set"))?;
    let life_max = if is_copy { BACKUP_COPY_LIFE_MAX } else { BACKUP_LIFE_MAX };
    let at = valid(asked, "expire_time")?;
    let life = at.saturating_sub(made_micros);
    if life < length_micros(BACKUP_LIFE_MIN) || life > length_micros(life_max) {
        return Err(Error::invalid_argument(format!(
            "expire_time must be at least {} hours and at most {} days after the backup is created",
            BACKUP_LIFE_MIN.as_secs() / 3_600,
            life_max.as_secs() / 86_400
        )));
    }
    if at <= now_micros {
        return Err(Error::invalid_argument(
            "expire_time must be in the future; DeleteBackup deletes a backup now",
        ));
    }
    Ok(*asked)
}

/// The type and the time of becoming a standard backup that a client asks for, for a backup that was made
/// at `made`.
pub fn kind(asked: &admin::Backup, made_micros: i64) -> Result<BackupType> {
    let kind = match BackupType::try_from(asked.backup_type) {
        Ok(BackupType::Unspecified) => BackupType::Standard,
        Ok(kind) => kind,
        Err(_) => {
            let number = asked.backup_type;
            return Err(Error::invalid_argument(format!("unknown backup_type {number}")));
        }
    };
    if let Some(at) = &asked.hot_to_standard_time {
        check_hot_to_standard(at, kind, made_micros)?;
    }
    Ok(kind)
}

/// Checks when a backup is to become a standard one.
pub fn check_hot_to_standard(
    at: &prost_types::Timestamp,
    kind: BackupType,
    made_micros: i64,
) -> Result<()> {
    if kind != BackupType::Hot {
        return Err(Error::invalid_argument(
            "hot_to_standard_time can be set for hot backups only",
        ));
    }
    let after = valid(at, "hot_to_standard_time")?.saturating_sub(made_micros);
    if after < length_micros(HOT_BACKUP_LIFE_MIN) {
        return Err(Error::invalid_argument(format!(
            "hot_to_standard_time must be at least {} hours after the backup is created",
            HOT_BACKUP_LIFE_MIN.as_secs() / 3_600
        )));
    }
    Ok(())
}

fn valid(time: &prost_types::Timestamp, field: &str) -> Result<i64> {
    let what = "is outside of the years 1 to 9999";
    check_parts(field, (time.seconds, time.nanos), &SECONDS, what)?;
    Ok(micros(time))
}

/// Refuses a duration that is negative, or is none: what is kept of a client's is shown to all, and their JSON cannot tell others.
pub fn check_duration(field: &str, length: &prost_types::Duration) -> Result<()> {
    let seconds = 0..=DURATION_SECONDS_MAX;
    check_parts(
        field,
        (length.seconds, length.nanos),
        &seconds,
        "is negative, or longer than ten thousand years",
    )
}

/// Refuses seconds outside of these, which `what` says, and nanoseconds outside of a second.
fn check_parts(
    field: &str,
    (seconds, nanos): (i64, i32),
    of: &RangeInclusive<i64>,
    what: &str,
) -> Result<()> {
    if !of.contains(&seconds) {
        return Err(Error::invalid_argument(format!(
            "{field} {what}; its seconds must be from {} to {}",
            of.start(),
            of.end()
        )));
    }
    if !(0..1_000_000_000).contains(&nanos) {
        return Err(Error::invalid_argument(format!("{field} has nanos outside of a second")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tepui_bigtable::error::Code;

    use super::*;

    const HOUR: i64 = 3_600 * 1_000_000;
    const DAY: i64 = 24 * HOUR;

    #[test]
    fn backups_live_for_six_hours_to_ninety_days_and_copies_for_thirty() {
        let asked = |after: i64, now: i64, is_copy| {
            expiry(Some(&timestamp(DAY + after)), DAY, DAY + now, is_copy).is_ok()
        };
        for (after, backup, copy) in [
            (6 * HOUR - 1, false, false),
            (6 * HOUR, true, true),
            (30 * DAY, true, true),
            (30 * DAY + 1, true, false),
            (90 * DAY, true, false),
            (90 * DAY + 1, false, false),
            (i64::MIN / 2, false, false),
        ] {
            assert_eq!((asked(after, 0, false), asked(after, 0, true)), (backup, copy), "{after}");
        }
        assert!(!asked(7 * HOUR, 7 * HOUR, false), "it is over already");
        assert!(asked(7 * HOUR, 7 * HOUR - 1, false));
        assert!(expiry(None, 0, 0, false).is_err());
        let odd = prost_types::Timestamp { seconds: 8 * 3_600, nanos: -1 };
        assert!(expiry(Some(&odd), 0, 0, false).is_err());
        let end = prost_types::Timestamp { seconds: i64::MAX, nanos: 0 };
        assert!(expiry(Some(&end), 0, 0, false).is_err());
    }

    #[test]
    fn only_hot_backups_become_standard_ones_and_not_on_the_first_day() {
        let asked = |backup_type, after: Option<i64>| {
            let hot_to_standard_time = after.map(timestamp);
            kind(&admin::Backup { backup_type, hot_to_standard_time, ..Default::default() }, 0)
        };
        assert_eq!(asked(0, None).unwrap(), BackupType::Standard);
        assert_eq!(asked(1, None).unwrap(), BackupType::Standard);
        assert_eq!(asked(2, None).unwrap(), BackupType::Hot);
        assert_eq!(asked(2, Some(DAY)).unwrap(), BackupType::Hot);
        for (kind, after) in [(2, Some(DAY - 1)), (1, Some(2 * DAY)), (0, Some(2 * DAY)), (3, None)]
        {
            assert!(asked(kind, after).is_err(), "{kind} {after:?}");
        }
    }

    #[test]
    fn times_are_of_the_years_that_a_timestamp_can_tell() {
        let last = prost_types::Timestamp { seconds: 253_402_300_799, nanos: 999_999_999 };
        check_hot_to_standard(&last, BackupType::Hot, 0).unwrap();
        for seconds in [253_402_300_800, i64::MAX, -62_135_596_801, i64::MIN] {
            let at = prost_types::Timestamp { seconds, nanos: 0 };
            let error = check_hot_to_standard(&at, BackupType::Hot, 0).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{seconds}");
            let told = error.message();
            assert!(told.contains("hot_to_standard_time") && told.contains("9999"), "{told}");
        }
    }

    #[test]
    fn times_come_back_as_they_were_to_the_microsecond() {
        for at in [0, -1, 1_500_000_000_123_456] {
            assert_eq!(micros(&timestamp(at)), at);
        }
    }
}
