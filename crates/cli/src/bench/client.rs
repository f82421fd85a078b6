//! A light client of the Bigtable API: one connection per worker, no retries, values checked as they
//! arrive.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_bench::dataset::{Dataset, Depth, TIMESTAMP_MICROS};
use tonic::transport::{Channel, Endpoint};

/// Largest message that is taken: servers keep responses under 4 MiB.
const RESPONSE_BYTES_MAX: usize = 8 << 20;

/// HTTP/2 windows; small ones would measure the round trip.
const WINDOW_BYTES: u32 = 16 << 20;

const INSTANCE: &str = "projects/bench/instances/bench";
const FAMILY: &str = "cf";

/// A connection.
#[derive(Clone)]
pub struct Client {
    data: v2::bigtable_client::BigtableClient<Channel>,
    admin: admin::bigtable_table_admin_client::BigtableTableAdminClient<Channel>,
    table: String,
}

fn text(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

impl Client {
    pub async fn connect(endpoint: &str, table: &str) -> Result<Self, String> {
        let channel = Endpoint::from_shared(format!("http://{endpoint}"))
            .map_err(|e| e.to_string())?
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .tcp_nodelay(true)
            .connect()
            .await
            .map_err(|e| format!("cannot connect to {endpoint}: {e}"))?;
        Ok(Self {
            data: v2::bigtable_client::BigtableClient::new(channel.clone())
                .max_decoding_message_size(RESPONSE_BYTES_MAX),
            admin: admin::bigtable_table_admin_client::BigtableTableAdminClient::new(channel),
            table: table.to_owned(),
        })
    }

    /// Creates the table with one family.
    pub async fn create_table(&mut self) -> Result<(), String> {
        let families = [(FAMILY.to_owned(), admin::ColumnFamily::default())].into();
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: self.table.clone(),
            table: Some(admin::Table { column_families: families, ..Default::default() }),
            ..Default::default()
        };
        self.admin.create_table(request).await.map_err(|e| text(&e))?;
        Ok(())
    }

    fn table_name(&self) -> String {
        format!("{INSTANCE}/tables/{}", self.table)
    }

    /// Writes rows `numbers`; an error if any entry failed.
    pub async fn write(
        &mut self,
        dataset: Dataset,
        numbers: std::ops::Range<u64>,
    ) -> Result<(), String> {
        let entries = numbers
            .map(|number| {
                let key = dataset.key(number);
                let mutations = (0..dataset.columns)
                    .map(|column| v2::Mutation {
                        mutation: Some(v2::mutation::Mutation::SetCell(v2::mutation::SetCell {
                            family_name: FAMILY.to_owned(),
                            column_qualifier: Dataset::qualifier(column).into(),
                            timestamp_micros: TIMESTAMP_MICROS,
                            value: dataset.value(number, column).into(),
                        })),
                    })
                    .collect();
                v2::mutate_rows_request::Entry {
                    row_key: key.into(),
                    mutations,
                    ..Default::default()
                }
            })
            .collect();
        let request =
            v2::MutateRowsRequest { table_name: self.table_name(), entries, ..Default::default() };
        let mut stream = self.data.mutate_rows(request).await.map_err(|e| text(&e))?.into_inner();
        while let Some(response) = stream.message().await.map_err(|e| text(&e))? {
            for entry in response.entries {
                if let Some(status) = entry.status.filter(|s| s.code != 0) {
                    return Err(format!("entry {}: {}", entry.index, status.message));
                }
            }
        }
        Ok(())
    }

    /// Reads the whole table, or the given keys, and checks every value. Returns the rows.
    pub async fn read(
        &mut self,
        dataset: Dataset,
        keys: Option<Vec<Vec<u8>>>,
    ) -> Result<u64, String> {
        let rows = keys.map(|keys| v2::RowSet {
            row_keys: keys.into_iter().map(Bytes::from).collect(),
            ..Default::default()
        });
        let request =
            v2::ReadRowsRequest { table_name: self.table_name(), rows, ..Default::default() };
        let mut stream = self.data.read_rows(request).await.map_err(|e| text(&e))?.into_inner();
        let mut check = Check { dataset, key: Bytes::new(), column: 0, value: Vec::new() };
        let mut count = 0;
        while let Some(response) = stream.message().await.map_err(|e| text(&e))? {
            for chunk in response.chunks {
                count += u64::from(check.chunk(chunk)?);
            }
        }
        Ok(count)
    }
}

/// Follows the chunks of a read and compares every cell with what the key says it must be.
struct Check {
    dataset: Dataset,
    key: Bytes,
    column: u32,
    value: Vec<u8>,
}

impl Check {
    /// Whether the chunk completes a row.
    fn chunk(&mut self, chunk: v2::read_rows_response::CellChunk) -> Result<bool, String> {
        // A message that goes on with a row may name it again.
        if !chunk.row_key.is_empty() && chunk.row_key != self.key {
            self.key = chunk.row_key;
            self.column = 0;
        }
        self.value.extend_from_slice(&chunk.value);
        if chunk.value_size == 0 {
            let row = self.dataset.row_of(&self.key);
            let row = row.ok_or_else(|| format!("row {:?} was not written", self.key))?;
            self.dataset
                .check(row, self.column, &self.value, Depth::Full)
                .map_err(|error| error.to_string())?;
            self.value.clear();
            self.column += 1;
        }
        let commit = matches!(
            chunk.row_status,
            Some(v2::read_rows_response::cell_chunk::RowStatus::CommitRow(true))
        );
        if commit && self.column != self.dataset.columns {
            return Err(format!("row {:?} has {} columns", self.key, self.column));
        }
        Ok(commit)
    }
}
