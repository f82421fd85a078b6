//! Writes rows by MutateRows until each is written or refused for good. Every cell carries its timestamp, so that
//! writing one twice leaves it as writing it once. In an aggregate family a write would add to what is there: the cell is
//! deleted there, and its state merged into nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{
    DeleteFromColumn, MergeToCell, Mutation as ProtoMutation, SetCell,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind;
use tonic::Code;

use crate::client::{Client, Patience, delay_of, delay_of_call, retry, words};
use crate::error::{Error, Result};
use crate::row::{Cell, Row};

/// How long a request may go without an answer until it is made again: longer than one of the largest cell takes on a slow
/// line.
const ATTEMPT_MAX: Duration = Duration::from_mins(5);

/// Between one timestamp and the next that a cell can have.
const MILLISECOND_MICROS: i64 = 1000;

/// Mutations that a cell takes at most.
pub const CELL_MUTATIONS_MAX: usize = 2;

/// Mutations that a cell takes, and about how many bytes in a request.
pub fn cost(cell: &Cell, is_aggregate: bool) -> (usize, usize) {
    let bytes = cell.wire_bytes();
    if is_aggregate { (CELL_MUTATIONS_MAX, 2 * bytes - cell.value.len()) } else { (1, bytes) }
}

/// A row, or a part of one that has more cells than a request takes.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The number of its record in the file.
    pub record: u64,
    /// Whether no further part of the row follows.
    pub last: bool,
    /// What to write.
    pub row: Row,
}

/// An entry that was not written, and why.
#[derive(Debug)]
pub struct Refused {
    /// The entry.
    pub entry: Entry,
    /// What the server says.
    pub reason: String,
}

/// What makes a cell what it is in the file; `is_aggregate` says that its family adds up, and its value is a state.
fn mutations(cell: &Cell, is_aggregate: bool) -> impl Iterator<Item = v2::Mutation> + use<> {
    let (first, second) = if is_aggregate {
        (ProtoMutation::DeleteFromColumn(delete(cell)), Some(merge(cell)))
    } else {
        (ProtoMutation::SetCell(set(cell)), None)
    };
    let second = second.map(ProtoMutation::MergeToCell);
    let both = std::iter::once(first).chain(second);
    both.map(|mutation| v2::Mutation { mutation: Some(mutation) })
}

fn set(cell: &Cell) -> SetCell {
    SetCell {
        family_name: cell.family.clone(),
        column_qualifier: cell.qualifier.clone(),
        timestamp_micros: cell.timestamp_micros,
        value: cell.value.clone(),
    }
}

/// Deletes the cell, and none beside it.
fn delete(cell: &Cell) -> DeleteFromColumn {
    let range = v2::TimestampRange {
        start_timestamp_micros: cell.timestamp_micros,
        // 0 is no end: behind the last millisecond there is no cell.
        end_timestamp_micros: cell.timestamp_micros.checked_add(MILLISECOND_MICROS).unwrap_or(0),
    };
    DeleteFromColumn {
        family_name: cell.family.clone(),
        column_qualifier: cell.qualifier.clone(),
        time_range: Some(range),
    }
}

fn merge(cell: &Cell) -> MergeToCell {
    let value = |kind| Some(v2::Value { kind: Some(kind), ..Default::default() });
    MergeToCell {
        family_name: cell.family.clone(),
        column_qualifier: value(Kind::RawValue(cell.qualifier.clone())),
        timestamp: value(Kind::RawTimestampMicros(cell.timestamp_micros)),
        input: value(Kind::RawValue(cell.value.clone())),
    }
}

fn request(
    entries: &[Entry],
    aggregates: &BTreeSet<String>,
) -> Vec<v2::mutate_rows_request::Entry> {
    let of_cell = |cell: &Cell| mutations(cell, aggregates.contains(&cell.family));
    let entry = |entry: &Entry| v2::mutate_rows_request::Entry {
        row_key: entry.row.key.clone(),
        mutations: entry.row.cells.iter().flat_map(of_cell).collect(),
        ..Default::default()
    };
    entries.iter().map(entry).collect()
}

/// What became of each entry of one attempt.
enum Answer {
    Written,
    /// To be tried again.
    Again(String),
    Refused(String),
}

/// Writes entries; those that were refused. `aggregates` are the families that add up. An error ends the import: the server is gone, or refuses everything.
pub async fn write(
    client: &mut Client,
    entries: Vec<Entry>,
    aggregates: &BTreeSet<String>,
    patience: &mut Patience,
) -> Result<Vec<Refused>> {
    let mut refused = Vec::new();
    // What is to be written, in lists of which each is one request.
    let mut lists = vec![entries];
    while let Some(entries) = lists.pop() {
        if entries.is_empty() {
            continue;
        }
        let mut said = None;
        let unanswered = || Answer::Again("MutateRows: no answer for a row".to_owned());
        let mut answers: Vec<Answer> = entries.iter().map(|_| unanswered()).collect();
        let sent = request(&entries, aggregates);
        let answered = attempt(client, sent, &mut answers, &mut said);
        match patience.in_time(ATTEMPT_MAX, answered).await {
            Ok(()) => {}
            // One bad row can spoil a request: each goes by itself then.
            Err(status) if of_the_rows(&status) && entries.len() > 1 => {
                lists.extend(entries.into_iter().map(|entry| vec![entry]));
                continue;
            }
            Err(status) if of_the_rows(&status) => {
                answers.fill_with(|| Answer::Refused(words("MutateRows", &status)));
            }
            // What was answered before stands.
            Err(status) if patience.calls_again(&status) => {
                said = delay_of_call(&status).or(said);
                for answer in &mut answers {
                    if let Answer::Again(why) = answer {
                        *why = words("MutateRows", &status);
                    }
                }
            }
            Err(status) => return Err(Error::failed(words("MutateRows", &status))),
        }
        let before = entries.len();
        let mut again = Vec::new();
        let mut why = String::new();
        for (entry, answer) in entries.into_iter().zip(answers) {
            match answer {
                Answer::Written => {}
                Answer::Refused(reason) => refused.push(Refused { entry, reason }),
                Answer::Again(reason) => {
                    why = reason;
                    again.push(entry);
                }
            }
        }
        if again.len() < before {
            patience.succeeded();
        }
        if !again.is_empty() {
            lists.push(again);
            patience.wait(said, &why).await?;
        }
    }
    Ok(refused)
}

/// Whether a request was refused for what is in it. A request that is too large is out of range to gRPC itself.
fn of_the_rows(status: &tonic::Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::OutOfRange)
}

/// Sends a request once, and puts down what is answered for each. `said` is how long the server asks to wait.
async fn attempt(
    client: &mut Client,
    request: Vec<v2::mutate_rows_request::Entry>,
    answers: &mut [Answer],
    said: &mut Option<Duration>,
) -> Result<(), tonic::Status> {
    let mut stream = client.write(request).await?;
    while let Some(message) = stream.message().await? {
        for answered in message.entries {
            let status = answered.status.unwrap_or_default();
            let index = usize::try_from(answered.index).unwrap_or(usize::MAX);
            let Some(answer) = answers.get_mut(index) else { continue };
            let code = Code::from(status.code);
            let reason = format!("{code:?}: {}", status.message);
            *answer = if code == Code::Ok {
                Answer::Written
            } else if retry(code, false) {
                *said = delay_of(&status).max(*said);
                Answer::Again(format!("MutateRows: {reason}"))
            } else {
                Answer::Refused(reason)
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn the_cell_of_an_aggregate_family_is_deleted_alone_and_merged() {
        let cell = |timestamp_micros: i64| Cell {
            family: "f".to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp_micros,
            value: Bytes::from_static(b"8 bytes."),
        };
        let last = i64::MAX - i64::MAX % MILLISECOND_MICROS;
        for (at, end) in [(0, 1000), (5000, 6000), (last, 0)] {
            let both: Vec<_> = mutations(&cell(at), true).filter_map(|m| m.mutation).collect();
            let [ProtoMutation::DeleteFromColumn(delete), ProtoMutation::MergeToCell(merge)] =
                &both[..]
            else {
                panic!("{both:?}")
            };
            let range = delete.time_range.unwrap();
            assert_eq!((range.start_timestamp_micros, range.end_timestamp_micros), (at, end));
            let raw = Kind::RawValue("8 bytes.".into());
            assert_eq!(merge.input.as_ref().unwrap().kind, Some(raw));
        }
        let plain: Vec<_> = mutations(&cell(0), false).filter_map(|m| m.mutation).collect();
        assert!(matches!(&plain[..], [ProtoMutation::SetCell(_)]), "{plain:?}");
    }
}
