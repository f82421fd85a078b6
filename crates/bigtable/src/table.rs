//! A table: its schema over its tablets, and the requests that it answers.
//!
//! A request that writes one row is one engine batch, and so atomic. Requests over several rows are
//! not, as in Bigtable. What a request means is worked out by the pure functions of the modules beside;
//! what is here puts them together with the tablets.
//!
//! ```text
//! mutate_row               compile ─────────────────────────────────────────► apply
//! check_and_mutate_row     compile ─► lock ─► read pending ─► predicate ───► apply or wait until
//! read_modify_write_row    compile ─► lock ─► read pending ─► rules ───────► what was read is durable
//! ```

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::try_join_all;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_request::RequestStatsView;
use tepui_engine::cell::{Mutation, ReadRow, Row, RowBatch, RowRange};
use tepui_engine::io::{Clock, Rng};
use tepui_engine::pressure::{self, Pressure, Priority};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{RowLock, RowRoom, ScanOptions, Tablet, TabletId};

use crate::activity;
use crate::authorized_view::{AuthorizedView, check_write};
use crate::bulk::Bulk;
use crate::bulk_writes::{BulkPlan, BulkRows, BulkWrite, bulk_writes, bulk_writes_in_flight};
use crate::chunk::LargeRows;
use crate::error::{Code, Error, Result};
use crate::filter::WithFilter;
use crate::idempotency::Token;
use crate::limits;
use crate::mutation;
use crate::origin::WithOrigins;
use crate::read_rows::{Plan, ReadRows};
use crate::rmw::{self, Rules};
use crate::rowset;
use crate::sample::{SAMPLE_PART_BYTES, TabletSample, rows_of, sample, within};
use crate::schema::{FamilyNames, TableSchema};
use crate::selection::{FilterSource, Pace, Selection};
use crate::tablets::TabletMap;
use crate::turn::{Turn, others_first};

/// Rows that a `DropRowRange` of a table with a change stream looks for and deletes at once, at most: enough to share syncs, and
/// to be worth a scan. More would hold their keys, of up to 4 KiB each.
const DELETES_IN_FLIGHT_MAX: usize = 256;

/// How long the pressure of a table's tablets counts as known. Clients ask with each bulk, and go by what they are told for seconds; it takes
/// a tenth of a millisecond to ask a thousand tablets.
const PRESSURE_MICROS: u64 = 100_000;

/// A table. All methods are safe to call from any thread.
#[derive(Debug)]
pub struct Table {
    name: String,
    tablets: TabletMap<Arc<Tablet>>,
    schema: RwLock<Served>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    /// The pressure of its tablets, as it was found at a time (monotonic micros).
    pressure: Mutex<Option<(u64, Pressure)>>,
}

/// A schema, with what every read needs of it: made once a change, not once a request.
#[derive(Debug, Clone)]
struct Served {
    schema: Arc<TableSchema>,
    names: FamilyNames,
}

impl Served {
    fn new(schema: Arc<TableSchema>) -> Self {
        Self { names: schema.names(), schema }
    }
}

impl Table {
    /// The table of a name (`projects/.../tables/...`) over tablets whose ranges cover every row once,
    /// in any order; `INTERNAL` where they do not. Gives the tablets their schema.
    pub fn new(
        name: impl Into<String>,
        tablets: Vec<Arc<Tablet>>,
        schema: Arc<TableSchema>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Result<Self> {
        let name = name.into();
        let tablets = tablets.into_iter().map(|t| (t.range().clone(), t)).collect();
        let tablets = TabletMap::new(tablets)
            .map_err(|e| Error::new(e.kind(), format!("table {name:?}: {}", e.message())))?;
        let table = Self {
            name,
            tablets,
            schema: RwLock::new(Served::new(Arc::clone(&schema))),
            clock,
            rng,
            pressure: Mutex::default(),
        };
        table.set_schema(schema);
        Ok(table)
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table's tablets with their ranges, in row order.
    pub fn tablets(&self) -> impl Iterator<Item = (&RowRange, &Arc<Tablet>)> {
        self.tablets.iter()
    }

    /// The time by which its changes expire: a doubted clock may be ahead of it. `None` where it has no tablet.
    pub fn expiry_micros(&self) -> Option<i64> {
        self.tablets().next().map(|(_, tablet)| tablet.expiry_micros())
    }

    /// The schema that requests see from now on.
    pub fn schema(&self) -> Arc<TableSchema> {
        Arc::clone(&self.schema.read().unwrap_or_else(PoisonError::into_inner).schema)
    }

    /// How far background work is behind the writes of the tablet of which it is furthest, or was [`PRESSURE_MICROS`] ago at most.
    pub fn pressure(&self) -> Option<Pressure> {
        let now = self.clock.monotonic_micros();
        let is_recent = |found: &(u64, Pressure)| now.saturating_sub(found.0) < PRESSURE_MICROS;
        if let Some((_, pressure)) = self.found_pressure().filter(is_recent) {
            return Some(pressure);
        }
        let pressure =
            self.tablets.iter().map(|(_, tablet)| tablet.pressure()).reduce(Pressure::or)?;
        *self.found_pressure() = Some((now, pressure));
        Some(pressure)
    }

    fn found_pressure(&self) -> MutexGuard<'_, Option<(u64, Pressure)>> {
        self.pressure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write of a row is let in with this priority; `RESOURCE_EXHAUSTED` with a hint when to try again where it is
    /// not. Carrying it out asks for the highest priority by itself.
    pub fn admit_as(&self, priority: Priority, row: &[u8]) -> Result<()> {
        Ok(self.tablets.get(row).admit_as(priority)?)
    }

    fn served(&self) -> Served {
        self.schema.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn names(&self) -> FamilyNames {
        self.schema.read().unwrap_or_else(PoisonError::into_inner).names.clone()
    }

    /// Changes the schema; one at a time is the caller's to see to. The tablets learn of it first: no request can write to a family
    /// that they do not know. They may keep it waiting for what picks a compaction, and requests do not wait with it.
    pub fn set_schema(&self, schema: Arc<TableSchema>) {
        let for_tablets = Arc::new(schema.to_tablet_schema());
        for (_, tablet) in self.tablets.iter() {
            tablet.set_schema(Arc::clone(&for_tablets));
        }
        let served = Served::new(schema);
        *self.schema.write().unwrap_or_else(PoisonError::into_inner) = served;
    }

    /// The tablet of a row, which this thread works for from now on.
    fn turn_to(&self, row: &[u8]) -> &Arc<Tablet> {
        let tablet = self.tablets.get(row);
        activity::turn_to(tablet.id());
        tablet
    }

    /// Changes one row. Every method that takes a view keeps within it, where there is one.
    pub async fn mutate_row(
        &self,
        request: impl Borrow<v2::MutateRowRequest>,
        view: Option<&AuthorizedView>,
    ) -> Result<()> {
        let asked = request.borrow();
        check_write(view, &asked.row_key, &asked.mutations)?;
        let batch = mutation::compile(&self.schema(), &asked.row_key, &asked.mutations)?;
        let token = Token::of(asked.idempotency.as_ref(), &batch, self.clock.now_micros())?;
        // Several times as large as what is waited for with.
        drop(request);
        let tablet = self.turn_to(&batch.row);
        match token {
            Some(token) => {
                tablet.admit()?;
                token.apply(tablet, batch).await?;
            }
            None if batch.mutations.is_empty() => {}
            None => {
                tablet.apply(batch).await?;
            }
        }
        Ok(())
    }

    /// Changes many rows; entries of the same row are applied in their order, but for those with an idempotency token,
    /// each of which is applied by itself, at any time. Returns the entries that failed, by index, each with its
    /// error; fails as a whole where nothing was tried.
    ///
    /// It is let in or refused once, with this priority, and before its mutations are looked at: `RESOURCE_EXHAUSTED` as a whole, with a
    /// hint when to try again, where all tablets of its rows refuse it. Entries of a tablet that refuses while others do not, or that is
    /// at its limit by the time their turn comes, are `UNAVAILABLE` with such a hint.
    pub async fn mutate_rows(
        &self,
        request: v2::MutateRowsRequest,
        priority: Priority,
        view: Option<&AuthorizedView>,
    ) -> Result<Vec<(usize, Error)>> {
        let rows = request.entries.iter().map(|entry| entry.row_key.as_ref());
        let refused = self.refusals(rows, priority, view)?;
        self.mutate_admitted_rows(request, refused, priority, view).await
    }

    /// The same for a request whose entries are decoded once it is let in.
    pub async fn mutate_rows_encoded(
        &self,
        bulk: Bulk,
        priority: Priority,
        view: Option<&AuthorizedView>,
    ) -> Result<Vec<(usize, Error)>> {
        let refused = self.refusals(bulk.rows(), priority, view)?;
        self.mutate_admitted_rows(bulk.decoded()?, refused, priority, view).await
    }

    /// The tablets that do not let in what a bulk writes to these rows, each with what it says; an error where none lets any of it
    /// in. Rows that cannot be written to ask nobody. What else is wrong with a tablet shows when it is written to.
    fn refusals<'a>(
        &self,
        rows: impl Iterator<Item = &'a [u8]>,
        priority: Priority,
        view: Option<&AuthorizedView>,
    ) -> Result<HashMap<TabletId, Error>> {
        let chance = self.rng.next_u64();
        let (mut refused, mut asked) = (HashMap::new(), HashSet::new());
        let is_writable = |row: &&[u8]| {
            limits::check_row_key(row).and_then(|()| check_write(view, row, &[])).is_ok()
        };
        for row in rows.filter(is_writable) {
            let tablet = self.tablets.get(row);
            if !asked.insert(tablet.id()) {
                continue;
            }
            if let Err(error) = tablet.admit_by(priority, chance)
                && pressure::is_refusal(&error)
            {
                refused.insert(tablet.id(), Error::from(error));
            }
        }
        if refused.len() < asked.len() {
            return Ok(refused);
        }
        refused.into_values().max_by_key(Error::retry_after).map_or(Ok(HashMap::new()), Err)
    }

    async fn mutate_admitted_rows(
        &self,
        request: v2::MutateRowsRequest,
        refused: HashMap<TabletId, Error>,
        priority: Priority,
        view: Option<&AuthorizedView>,
    ) -> Result<Vec<(usize, Error)>> {
        let BulkPlan { rows, mut failed } =
            BulkPlan::new(&self.schema(), &request.entries, self.clock.now_micros(), view)?;
        drop(request);
        let writes = bulk_writes(rows, &self.tablets, |tablet| tablet.id());
        let in_flight = bulk_writes_in_flight(&writes);
        let mut turn = Turn::default();
        let writes = writes.into_iter().map(|BulkWrite { tablet, rows, entries, bytes }| {
            turn.row(bytes);
            let turn_is_over = turn.is_over();
            let refused = refused.get(&tablet.id()).cloned();
            async move {
                if let Some(refused) = refused {
                    return failure_of(&entries, &refused.as_unavailable());
                }
                if turn_is_over {
                    others_first().await;
                }
                activity::turn_to(tablet.id());
                let applied = match rows {
                    // Boxed, so that other writes stay small.
                    BulkRows::InOrder(parts) => {
                        return Box::pin(apply_in_order(&tablet, parts, &entries, priority)).await;
                    }
                    BulkRows::Together(batches) => apply_part(&tablet, batches, priority).await,
                    BulkRows::Once(token, batch) => match tablet.admit_part(priority) {
                        Ok(()) => token.apply(&tablet, batch).await,
                        Err(error) => Err(error.into()),
                    },
                };
                applied.map_or_else(|error| failure_of(&entries, &of_entry(error)), |()| Vec::new())
            }
        });
        let mut writes = futures::stream::iter(writes).buffer_unordered(in_flight);
        while let Some(of_write) = writes.next().await {
            failed.extend(of_write);
        }
        failed.sort_unstable_by_key(|(entry, _)| *entry);
        Ok(failed)
    }

    /// Changes one row in one of two ways, depending on whether a filter lets any of its cells pass.
    pub async fn check_and_mutate_row(
        &self,
        request: &v2::CheckAndMutateRowRequest,
    ) -> Result<v2::CheckAndMutateRowResponse> {
        let predicate = FilterSource::Message(request.predicate_filter.as_ref());
        let check = self.checked(request, predicate, None)?;
        self.carry_out(check).await
    }

    /// The same for a request whose filter is kept as it arrived.
    pub async fn check_and_mutate_row_encoded(
        &self,
        request: WithFilter<WithOrigins<v2::CheckAndMutateRowRequest>>,
        view: Option<&AuthorizedView>,
    ) -> Result<v2::CheckAndMutateRowResponse> {
        let check = self.check(&request, view)?;
        drop(request);
        self.carry_out(check).await
    }

    /// What such a request is compiled to, for [`Self::carry_out`].
    pub fn check(
        &self,
        request: &WithFilter<WithOrigins<v2::CheckAndMutateRowRequest>>,
        view: Option<&AuthorizedView>,
    ) -> Result<Check> {
        let WithFilter { request: WithOrigins(request), filter } = request;
        self.checked(request, FilterSource::Encoded(filter.as_deref()), view)
    }

    fn checked(
        &self,
        request: &v2::CheckAndMutateRowRequest,
        predicate: FilterSource<'_>,
        view: Option<&AuthorizedView>,
    ) -> Result<Check> {
        let row = request.row_key.clone();
        limits::check_row_key(&row)?;
        check_write(view, &row, &[])?;
        if request.true_mutations.is_empty() && request.false_mutations.is_empty() {
            return Err(Error::invalid_argument(
                "No mutations provided: one of true_mutations and false_mutations must be set",
            ));
        }
        let Served { schema, names: families } = self.served();
        let compile = |field, mutations: &[v2::Mutation]| {
            check_write(view, &row, mutations)
                .and_then(|()| mutation::compile_list(&schema, &row, mutations))
                .map_err(|e| in_field(field, &e))
        };
        let if_true = compile("true_mutations", &request.true_mutations)?;
        let if_false = compile("false_mutations", &request.false_mutations)?;
        let predicate = Selection::of_predicate(predicate, &families, view)
            .map_err(|e| in_field("predicate_filter", &e))?;
        Ok(Check { row, predicate, families, if_true, if_false })
    }

    /// Changes one row in one of two ways, as it was compiled.
    pub async fn carry_out(&self, check: Check) -> Result<v2::CheckAndMutateRowResponse> {
        let Check { row, predicate, families, if_true, if_false } = check;
        let row = &row;
        let tablet = self.turn_to(row);
        tablet.admit()?;
        let lock = tablet.lock_row(row).await;
        let matched = async {
            let projection = predicate.projection();
            let (found, room) = tablet.read_locked_row(row, projection).await?;
            match found {
                None => Ok(false),
                Some(found) => match predicate.pace_of(&found) {
                    Pace::Short => predicate.passes_any(found, &families, self.rng.as_ref()),
                    pace => {
                        let (families, rng) = (families.clone(), Arc::clone(&self.rng));
                        // Its room is for as long as the row is looked at, though nobody may wait for what comes of it.
                        let passes = move || {
                            let _room = room;
                            predicate.passes_any(found, &families, rng.as_ref())
                        };
                        // Boxed, so that requests for other rows stay small.
                        Box::pin(pace.carry_out(Some(tablet.id()), passes)).await?
                    }
                },
            }
        };
        let (lock, predicate_matched) = read_pending(tablet, lock, matched).await?;
        let batch = if predicate_matched { if_true } else { if_false };
        if batch.mutations.is_empty() {
            tablet.wait_durable(lock).await?;
        } else {
            tablet.apply_locked(lock, batch).await?;
        }
        Ok(v2::CheckAndMutateRowResponse { predicate_matched })
    }

    /// Appends to and increments cells of one row; answers with their new contents.
    pub async fn read_modify_write_row(
        &self,
        request: &v2::ReadModifyWriteRowRequest,
        view: Option<&AuthorizedView>,
    ) -> Result<v2::ReadModifyWriteRowResponse> {
        self.read_to_change(request, view).await?.change().await
    }

    /// The first half of it. How large the row is shows here, of a request that may be small.
    pub async fn read_to_change(
        &self,
        request: &v2::ReadModifyWriteRowRequest,
        view: Option<&AuthorizedView>,
    ) -> Result<RowToChange> {
        let row = &request.row_key;
        limits::check_row_key(row)?;
        if let Some(view) = view {
            view.check_row(row)?;
            for rule in &request.rules {
                view.check_column(&rule.family_name, &rule.column_qualifier)?;
            }
        }
        let Served { schema, names } = self.served();
        let rules = Rules::compile(&schema, &request.rules)?;

        let tablet = self.turn_to(row);
        tablet.admit()?;
        let lock = tablet.lock_row(row).await;
        let read = async { Ok(tablet.read_locked_row(row, &rules.projection()).await?) };
        let (lock, (found, room)) = read_pending(tablet, lock, read).await?;
        let (tablet, row) = (Arc::clone(tablet), row.clone());
        Ok(RowToChange { tablet, lock, row, found, room, rules, names })
    }

    /// Starts a read; the answer is pulled from what this returns.
    pub fn read_rows(&self, request: v2::ReadRowsRequest) -> Result<ReadRows> {
        let filter = FilterSource::Message(request.filter.as_ref());
        self.start_read(&request, filter, LargeRows::Split, None)
    }

    /// The same for a request whose filter is kept as it arrived, for a client of whom it is known how it takes rows
    /// that are larger than a message, and through a view.
    pub fn read_rows_encoded(
        &self,
        request: &WithFilter<v2::ReadRowsRequest>,
        large_rows: LargeRows,
        view: Option<&AuthorizedView>,
    ) -> Result<ReadRows> {
        let filter = FilterSource::Encoded(request.filter.as_deref());
        self.start_read(&request.request, filter, large_rows, view)
    }

    fn start_read(
        &self,
        request: &v2::ReadRowsRequest,
        filter: FilterSource<'_>,
        large_rows: LargeRows,
        view: Option<&AuthorizedView>,
    ) -> Result<ReadRows> {
        let rows_limit = rows_limit(request.rows_limit)?;
        let spans = rowset::normalize(request.rows.as_ref())?;
        let asked = spans.len();
        let spans = match view {
            Some(view) => view.narrow(&spans),
            None => spans,
        };
        let families = self.names();
        let mut selection = Selection::of_read(filter, &families, view)?;
        let wants_stats = request.request_stats_view() == RequestStatsView::RequestStatsFull;
        if wants_stats {
            // What the filter refuses is to be counted, so the engine must not leave it out.
            selection.look_at_all_cells();
        }
        let pieces = self.tablets.lay_out(&selection.narrow(spans), request.reversed);
        Ok(ReadRows::new(Plan {
            pieces,
            asked,
            selection,
            families,
            rng: Arc::clone(&self.rng),
            reverse: request.reversed,
            rows_limit,
            large_rows,
            stats_clock: wants_stats.then(|| Arc::clone(&self.clock)),
        }))
    }

    /// Row keys that divide the table: the bounds of its tablets, and rows within large ones, with the
    /// bytes before each. The last is the empty key with the bytes of the table. Through a view or of a range, those that
    /// divide its rows, ending with their end; of a range with the bytes from the sample before it on.
    ///
    /// Blocks: reads a little of each file of the tablets that have some of these rows.
    pub fn sample_row_keys(
        &self,
        view: Option<&AuthorizedView>,
        range: Option<&v2::RowRange>,
    ) -> Result<Vec<v2::SampleRowKeysResponse>> {
        let wanted = range.map(rows_of).transpose()?;
        let mut tablets = Vec::new();
        for (range, tablet) in self.tablets.iter() {
            let is_wanted = wanted.as_ref().is_none_or(|wanted| wanted.overlaps(range))
                && view.is_none_or(|view| view.overlaps(range));
            // Of the others it counts only how large they are.
            let rows = if is_wanted { tablet.sample_rows(SAMPLE_PART_BYTES)? } else { Vec::new() };
            let stats = tablet.stats();
            let bytes = stats.stored_bytes().saturating_add(stats.memtable_bytes);
            tablets.push(TabletSample { end: range.end.clone(), rows, bytes });
        }
        let samples = sample(tablets);
        let samples = match view {
            Some(view) => view.samples(samples),
            None => samples,
        };
        match range {
            Some(range) => within(samples, range),
            None => Ok(samples),
        }
    }

    /// Deletes the rows that start with `prefix`, or all rows without one.
    pub async fn drop_row_range(&self, prefix: Option<&[u8]>) -> Result<()> {
        try_join_all(self.drops(prefix)?.into_iter().map(TabletDrop::carry_out)).await?;
        Ok(())
    }

    /// What [`Self::drop_row_range`] does, tablet by tablet, for whoever has a thread for each.
    pub fn drops(&self, prefix: Option<&[u8]>) -> Result<Vec<TabletDrop>> {
        let range = match prefix {
            None => RowRange::all(),
            Some(prefix) => {
                limits::check_row_key(prefix).map_err(|e| in_field("row_key_prefix", &e))?;
                RowRange::prefix(prefix)
            }
        };
        let drops = self.tablets.overlapping(&range);
        Ok(drops.map(|(range, t)| TabletDrop { tablet: Arc::clone(t), range }).collect())
    }
}

/// A `CheckAndMutateRow` as it is carried out.
pub struct Check {
    row: Bytes,
    predicate: Selection,
    families: FamilyNames,
    if_true: RowBatch,
    if_false: RowBatch,
}

impl Check {
    /// Bytes of what its predicate was compiled to, and may build while it runs.
    pub fn filter_bytes(&self) -> usize {
        self.predicate.filter_bytes()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("row", &self.row).finish_non_exhaustive()
    }
}

/// What comes of a read of cells that may not be durable yet, of the row that is locked. An error that tells of them is
/// told once they are.
async fn read_pending<T>(
    tablet: &Tablet,
    lock: RowLock,
    read: impl Future<Output = Result<T>>,
) -> Result<(RowLock, T)> {
    match read.await {
        Ok(read) => Ok((lock, read)),
        Err(error) => {
            tablet.wait_durable(lock).await?;
            Err(error)
        }
    }
}

/// What a `ReadModifyWriteRow` has found, with what is not durable yet, of a row that is locked until it is changed or this is dropped.
#[derive(Debug)]
pub struct RowToChange {
    tablet: Arc<Tablet>,
    lock: RowLock,
    row: Bytes,
    found: Option<ReadRow>,
    room: RowRoom,
    rules: Rules,
    names: FamilyNames,
}

impl RowToChange {
    /// Bytes of what was found. What is written and answered may have as many.
    pub fn bytes(&self) -> u64 {
        self.found.as_ref().map_or(0, ReadRow::bytes)
    }

    /// The second half: writes what the rules make of it, and answers with that.
    pub async fn change(self) -> Result<v2::ReadModifyWriteRowResponse> {
        let Self { tablet, lock, row, found, room: _room, rules, names } = self;
        activity::turn_to(tablet.id());
        let changed = async {
            let found = found.map(Row::from);
            // The time is taken under the lock: what is written later is never older.
            rules.apply(found.as_ref(), tablet.time_of_write())
        };
        let (lock, cells) = read_pending(&tablet, lock, changed).await?;
        tablet.apply_locked(lock, rmw::batch(&row, &cells)).await?;
        let row = rmw::response(&row, cells, &names);
        Ok(v2::ReadModifyWriteRowResponse { row: Some(row) })
    }
}

/// Applies rows of a bulk, if there is room for them by now.
async fn apply_part(tablet: &Tablet, rows: Vec<RowBatch>, priority: Priority) -> Result<()> {
    tablet.admit_part(priority)?;
    Ok(tablet.apply_rows_admitted(rows).await?)
}

/// Applies parts of a row, each with so many of the entries, one after the other; returns what failed. Behind a part that may be tried again
/// none is applied: it would come before that one.
async fn apply_in_order(
    tablet: &Tablet,
    parts: Vec<(RowBatch, usize)>,
    mut entries: &[usize],
    priority: Priority,
) -> Vec<(usize, Error)> {
    let mut failed = Vec::new();
    for (batch, count) in parts {
        let (of_part, behind) = entries.split_at(count);
        match apply_part(tablet, vec![batch], priority).await.map_err(of_entry) {
            Ok(()) => {}
            Err(error) if error.kind() == Code::InvalidArgument => {
                failed.extend(failure_of(of_part, &error));
            }
            Err(error) => {
                failed.extend(failure_of(entries, &error));
                break;
            }
        }
        entries = behind;
    }
    failed
}

/// What the entries of a bulk are told that an error has failed.
fn failure_of(entries: &[usize], error: &Error) -> Vec<(usize, Error)> {
    entries.iter().map(|entry| (*entry, error.clone())).collect()
}

/// The error of a write as its entries are told of it.
fn of_entry(error: Error) -> Error {
    let is_refusal = error.retry_after().is_some() && !error.is_in_doubt();
    if is_refusal { error.as_unavailable() } else { error }
}

/// What a `DropRowRange` does to one tablet.
#[derive(Debug, Clone)]
pub struct TabletDrop {
    tablet: Arc<Tablet>,
    range: RowRange,
}

impl TabletDrop {
    /// Whether they may go [at once](Self::at_once): no change stream is to show each row.
    pub fn may_be_at_once(&self) -> bool {
        self.tablet.changes_kept().is_none()
    }

    /// Deletes the rows as they are when it is asked whether that is still `wanted`; durable and visible when it resolves. `false`, and nothing
    /// was done, where a change stream is to show each. Blocks while the tablet's manifest is synced.
    pub async fn at_once(&self, wanted: impl Fn() -> bool) -> Result<bool> {
        Ok(self.may_be_at_once() && self.tablet.drop_rows_while(self.range.clone(), wanted).await?)
    }

    /// Deletes the rows, in the one way or the other.
    async fn carry_out(self) -> Result<()> {
        if self.at_once(|| true).await? { Ok(()) } else { self.one_by_one().await }
    }

    /// Deletes the rows one by one; durable and visible when it resolves, and goes no further once it is dropped.
    pub async fn one_by_one(self) -> Result<()> {
        delete_rows(&self.tablet, self.range).await
    }
}

/// Deletes the rows of a range one by one: a change stream shows each of them.
///
/// Nothing of the tablet is held while deletions wait for room: a scan keeps the memtables of its beginning, and the room may be
/// theirs. So the rows are looked for piece by piece, each as it is by then, and what others write there meanwhile goes too. Not
/// so behind the last row that there was at first: whoever appends rows without pause would keep this from its end.
async fn delete_rows(tablet: &Tablet, mut range: RowRange) -> Result<()> {
    let Some(last) = last_row(tablet, &range).await? else { return Ok(()) };
    range.end = RowRange::row(&last).end;
    while !range.is_empty() {
        let rows;
        (rows, range.start) = first_rows(tablet, &range).await?;
        let deletions = rows.into_iter().map(|row| {
            tablet.apply_when_room(RowBatch { row, mutations: vec![Mutation::DeleteRow] })
        });
        try_join_all(deletions).await?;
        others_first().await;
    }
    Ok(())
}

/// The last row of a range.
async fn last_row(tablet: &Tablet, range: &RowRange) -> Result<Option<Bytes>> {
    let mut rows = tablet.scan(keys_of(range, true, 1))?;
    while let Some(row) = rows.next_in_place().await? {
        if !row.is_mark() {
            return Ok(Some(row.key().clone()));
        }
        others_first().await;
    }
    Ok(None)
}

/// The first rows of a range, as many as are deleted at once or as a scan finds before it gives a mark, and the key from which
/// the range goes on: its end if it does not.
async fn first_rows(tablet: &Tablet, range: &RowRange) -> Result<(Vec<Bytes>, Bytes)> {
    let mut rows = tablet.scan(keys_of(range, false, DELETES_IN_FLIGHT_MAX))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next_in_place().await? {
        if !row.is_mark() {
            found.push(row.key().clone());
        }
        if row.is_mark() || found.len() >= DELETES_IN_FLIGHT_MAX {
            return Ok((found, RowRange::row(row.key()).end));
        }
    }
    Ok((found, range.end.clone()))
}

/// A scan for the keys of rows, so many at most.
fn keys_of(range: &RowRange, reverse: bool, rows_max: usize) -> ScanOptions {
    let projection = Projection { values: false, cells_per_row_max: 1, ..Projection::all() };
    let (range, rows_hint) = (range.clone(), Some(rows_max));
    ScanOptions { range, projection, reverse, rows_hint, snapshot: None }
}

/// A limit on rows as it is used: 0 means none.
fn rows_limit(limit: i64) -> Result<Option<u64>> {
    match u64::try_from(limit) {
        Ok(0) => Ok(None),
        Ok(limit) => Ok(Some(limit)),
        Err(_) => Err(Error::invalid_argument(format!(
            "Error in field 'rows_limit' : must not be negative, but got {limit}"
        ))),
    }
}

fn in_field(field: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("Error in field '{field}' : {}", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_limit_of_zero_is_none_and_negative_is_refused() {
        assert_eq!(rows_limit(0), Ok(None));
        assert_eq!(rows_limit(7), Ok(Some(7)));
        for bad in [-1, i64::MIN] {
            assert_eq!(rows_limit(bad).unwrap_err().kind(), Code::InvalidArgument);
        }
    }

    #[test]
    fn requests_are_send() {
        fn is_send<T: Send>(_: &T) {}
        #[expect(dead_code, reason = "only its types are checked")]
        fn check(table: &Table) {
            is_send(&table.mutate_row(&v2::MutateRowRequest::default(), None));
            let bulk = v2::MutateRowsRequest::default();
            is_send(&table.mutate_rows(bulk, Priority::High, None));
            is_send(&table.check_and_mutate_row(&v2::CheckAndMutateRowRequest::default()));
            is_send(&table.read_modify_write_row(&v2::ReadModifyWriteRowRequest::default(), None));
            is_send(&table.drop_row_range(None));
        }
    }
}
