//! Writes rows by MutateRows until each is written or refused for good. Every cell carries its timestamp, so that
//! writing one twice leaves it as writing it once.

use std::time::Duration;

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tonic::Code;

use crate::client::{Client, Patience, delay_of, delay_of_call, retry, words};
use crate::error::{Error, Result};
use crate::row::Row;

/// How long a request may go without an answer until it is made again: longer than one of the largest cell takes on a slow
/// line.
const ATTEMPT_MAX: Duration = Duration::from_mins(5);

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

fn mutation(cell: &crate::row::Cell) -> v2::Mutation {
    let set = v2::mutation::SetCell {
        family_name: cell.family.clone(),
        column_qualifier: cell.qualifier.clone(),
        timestamp_micros: cell.timestamp_micros,
        value: cell.value.clone(),
    };
    v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(set)) }
}

fn request(entries: &[Entry]) -> Vec<v2::mutate_rows_request::Entry> {
    let entry = |entry: &Entry| v2::mutate_rows_request::Entry {
        row_key: entry.row.key.clone(),
        mutations: entry.row.cells.iter().map(mutation).collect(),
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

/// Writes entries; those that were refused. An error ends the import: the server is gone, or refuses everything.
pub async fn write(
    client: &mut Client,
    entries: Vec<Entry>,
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
        let answered = attempt(client, &entries, &mut answers, &mut said);
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

/// Sends entries once, and puts down what is answered for each. `said` is how long the server asks to wait.
async fn attempt(
    client: &mut Client,
    entries: &[Entry],
    answers: &mut [Answer],
    said: &mut Option<Duration>,
) -> Result<(), tonic::Status> {
    let mut stream = client.write(request(entries)).await?;
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
