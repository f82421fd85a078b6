//! The Bigtable API as a benchmark uses it: one connection, no retries but of refusals, every row compared.

use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tonic::{Code, Status};

use super::ask::{Asks, COUNTERS, FAMILY, Table};
use super::chunks::each_chunk;
use super::connection::{Connection, decode};
use super::retry::{Refusal, Refusals};
use super::rows::ChunkCheck;
use crate::error::{Error, Result};
use crate::run::Found;

/// Methods, by their paths.
pub mod method {
    macro_rules! data {
        ($method:literal) => {
            concat!("/google.bigtable.v2.Bigtable/", $method)
        };
    }
    macro_rules! table_admin {
        ($method:literal) => {
            concat!("/google.bigtable.admin.v2.BigtableTableAdmin/", $method)
        };
    }
    /// Reads rows.
    pub const READ_ROWS: &str = data!("ReadRows");
    /// Writes a row.
    pub const MUTATE_ROW: &str = data!("MutateRow");
    /// Writes many rows.
    pub const MUTATE_ROWS: &str = data!("MutateRows");
    /// Changes a row by what it holds.
    pub const READ_MODIFY_WRITE_ROW: &str = data!("ReadModifyWriteRow");
    /// Makes a table.
    pub const CREATE_TABLE: &str = table_admin!("CreateTable");
    /// Describes a table.
    pub const GET_TABLE: &str = table_admin!("GetTable");
    /// Makes, changes and drops families.
    pub const MODIFY_COLUMN_FAMILIES: &str = table_admin!("ModifyColumnFamilies");
}

/// What went wrong with one request.
#[derive(Debug)]
pub enum Failure {
    /// The server asks to come back later.
    Refused(Refusal),
    /// Anything else: the run ends.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Failure {
    /// As an error, where a refusal is one too: of what is asked once.
    pub fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Refused(refusal) => {
                Error::failed(format!("the server refuses to be read: {}", refusal.message))
            }
        }
    }
}

/// What a request came to.
pub type Outcome<T> = std::result::Result<T, Failure>;

fn text(what: &str, status: &Status) -> Error {
    Error::failed(format!("{what}: {:?}: {}", status.code(), status.message()))
}

/// A client of the data API. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Connection,
}

impl Client {
    /// Speaks over a connection to a server.
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    fn failure(what: &str, status: &Status, refusals: &Refusals) -> Failure {
        if status.code() == Code::ResourceExhausted {
            let delay = refusals.count(status.details());
            Failure::Refused(Refusal { delay, message: status.message().to_owned() })
        } else {
            Failure::Failed(text(what, status))
        }
    }

    /// Reads rows and compares them.
    pub async fn read(
        &mut self,
        request: v2::ReadRowsRequest,
        mut check: ChunkCheck<'_>,
        refusals: &Refusals,
    ) -> Outcome<Found> {
        let failure = |status| Self::failure("ReadRows", &status, refusals);
        let answer = self.connection.call(method::READ_ROWS, &request).await;
        let mut stream = answer.map_err(failure)?;
        while let Some(response) = stream.message().await.map_err(failure)? {
            each_chunk(&response, |chunk| check.chunk(chunk))?;
        }
        Ok(check.found())
    }

    /// Writes one row.
    pub async fn write(
        &mut self,
        request: v2::MutateRowRequest,
        refusals: &Refusals,
    ) -> Outcome<()> {
        let failure = |status| Self::failure("MutateRow", &status, refusals);
        let done = self.connection.unary(method::MUTATE_ROW, &request).await;
        done.map(|_: v2::MutateRowResponse| ()).map_err(failure)
    }

    /// Adds to a counter; its new value.
    pub async fn increment(
        &mut self,
        request: v2::ReadModifyWriteRowRequest,
        refusals: &Refusals,
    ) -> Outcome<i64> {
        let failure = |status| Self::failure("ReadModifyWriteRow", &status, refusals);
        let changed = self.connection.unary(method::READ_MODIFY_WRITE_ROW, &request).await;
        let changed: v2::ReadModifyWriteRowResponse = changed.map_err(failure)?;
        let row = changed.row.unwrap_or_default();
        let family = row.families.first().filter(|family| family.name == COUNTERS);
        let cell = family.and_then(|f| f.columns.first()).and_then(|c| c.cells.first());
        let count = cell.and_then(|cell| <[u8; 8]>::try_from(cell.value.as_ref()).ok());
        let count = count.map(i64::from_be_bytes).filter(|count| *count > 0);
        let wrong = || Error::mismatch("an increment came back without its counter");
        Ok(count.ok_or_else(wrong)?)
    }

    /// Writes many rows, and leaves those in `rows` that are still to be written where the server refuses some or all of them.
    pub async fn load(
        &mut self,
        asks: &Asks,
        rows: &mut Vec<u64>,
        refusals: &Refusals,
    ) -> Outcome<()> {
        let request = asks.load(rows.iter().copied());
        let failure = |status| Self::failure("MutateRows", &status, refusals);
        let answer = self.connection.call(method::MUTATE_ROWS, &request).await;
        let mut stream = answer.map_err(failure)?;
        let mut refused = Vec::new();
        let mut told = true;
        let (mut delay, mut message) = (None, String::new());
        while let Some(response) = stream.message().await.map_err(failure)? {
            let response: v2::MutateRowsResponse = decode(response).map_err(failure)?;
            for entry in response.entries {
                let Some(status) = entry.status.filter(|status| status.code != 0) else { continue };
                if !Refusals::is_one(&status) {
                    let (index, code) = (entry.index, Code::from(status.code));
                    let message =
                        format!("MutateRows, entry {index}: {code:?}: {}", status.message);
                    return Err(Error::failed(message).into());
                }
                let row = usize::try_from(entry.index).ok().and_then(|at| rows.get(at));
                let unknown =
                    || Error::mismatch(format!("entry {} of {}", entry.index, rows.len()));
                refused.push(*row.ok_or_else(unknown)?);
                let said = Refusals::delay(&status);
                told &= said.is_some();
                delay = delay.max(said);
                message = status.message;
            }
        }
        *rows = refused;
        if rows.is_empty() {
            return Ok(());
        }
        let delay = refusals.count_entries(delay.filter(|_| told));
        Err(Failure::Refused(Refusal { delay, message }))
    }

    /// Makes sure that a table is there, with the families that benchmarks use; whether it was made. Families come by
    /// `ModifyColumnFamilies` on any server: Google's emulator collects nothing before it has seen one.
    pub async fn ensure_table(&mut self, table: &Table) -> Result<bool> {
        // One version is what a row of YCSB has; older ones are for the garbage collection.
        let one = admin::GcRule { rule: Some(admin::gc_rule::Rule::MaxNumVersions(1)) };
        let family = admin::ColumnFamily { gc_rule: Some(one), ..Default::default() };
        let request = admin::CreateTableRequest {
            parent: table.instance.clone(),
            table_id: table.id.clone(),
            table: Some(admin::Table::default()),
            ..Default::default()
        };
        let created = self.connection.unary(method::CREATE_TABLE, &request).await;
        let made = match created.map(|_: admin::Table| ()) {
            Ok(()) => true,
            Err(status) if status.code() == Code::AlreadyExists => false,
            Err(status) => return Err(text("CreateTable", &status)),
        };
        let name = table.name();
        let request = admin::GetTableRequest { name: name.clone(), ..Default::default() };
        let there = self.connection.unary(method::GET_TABLE, &request).await;
        let there: admin::Table = there.map_err(|s| text("GetTable", &s))?;
        let modifications: Vec<_> = [FAMILY, COUNTERS]
            .into_iter()
            .filter(|name| !there.column_families.contains_key(*name))
            .map(|name| admin::modify_column_families_request::Modification {
                id: name.to_owned(),
                r#mod: Some(admin::modify_column_families_request::modification::Mod::Create(
                    family.clone(),
                )),
                ..Default::default()
            })
            .collect();
        if !modifications.is_empty() {
            let request =
                admin::ModifyColumnFamiliesRequest { name, modifications, ..Default::default() };
            let done = self.connection.unary(method::MODIFY_COLUMN_FAMILIES, &request).await;
            let _: admin::Table = done.map_err(|s| text("ModifyColumnFamilies", &s))?;
        }
        Ok(made)
    }

    /// Whether the rows with these numbers are there as they should be.
    pub async fn has(&mut self, asks: &Asks, check: ChunkCheck<'_>, rows: &[u64]) -> Result<bool> {
        let request = asks.rows(rows, super::ask::Naming::Family);
        let read = self.read(request, check, &Refusals::default()).await;
        Ok(read.map_err(Failure::into_error)?.rows == rows.len() as u64)
    }

    /// The first key that a read shows; none of a table that is not there.
    pub async fn first_key(&mut self, request: v2::ReadRowsRequest) -> Result<Option<Vec<u8>>> {
        let failure = |status| text("ReadRows", &status);
        let mut stream = match self.connection.call(method::READ_ROWS, &request).await {
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            answer => answer.map_err(failure)?,
        };
        let mut first = None;
        loop {
            let response = match stream.message().await {
                Err(status) if status.code() == Code::NotFound => return Ok(None),
                message => message.map_err(failure)?,
            };
            let Some(response) = response else { return Ok(first) };
            each_chunk(&response, |chunk| {
                if first.is_none() && !chunk.row_key.is_empty() {
                    first = Some(chunk.row_key.to_vec());
                }
                Ok(())
            })?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_the_words_of_the_server() {
        let refusals = Refusals::default();
        let full = Status::resource_exhausted("the disk is full");
        let failure = Client::failure("MutateRows", &full, &refusals);
        assert!(matches!(&failure, Failure::Refused(r) if r.message == full.message()));
        assert!(failure.into_error().to_string().contains(full.message()));
        let gone = Client::failure("MutateRows", &Status::unavailable("gone"), &refusals);
        assert!(matches!(gone, Failure::Failed(_)), "{gone:?}");
        assert_eq!(refusals.all(), 1);
    }
}
