//! One thread's reads of a RocksDB database: buffers that are reused, values that are borrowed from the block cache.

use rocksdb::{ColumnFamily, DBPinnableSlice, DBRawIterator, ReadOptions, WriteOptions};
use tepui_bench::check::ScanCheck;
use tepui_bench::{Dataset, Depth, Error, Found, Lane, Op, Result, Ticket};

use super::settings::Layout;
use super::store::{Columns, How, ScanReadahead, Shared, Waiting, failed, push_column};

/// The default column family, which every database has.
const FAMILY: &str = "default";

pub(super) struct Reader<'a> {
    shared: &'a Shared,
    family: &'a ColumnFamily,
    dataset: Dataset,
    how: How,
    point: ReadOptions,
    write: WriteOptions,
    key: Vec<u8>,
    /// Keys of a MultiGet. Those beyond the current one's are kept for their memory.
    keys: Vec<Vec<u8>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(shared: &'a Shared, how: How, dataset: Dataset) -> Result<Self> {
        let family = shared
            .db
            .cf_handle(FAMILY)
            .ok_or_else(|| Error::failed("RocksDB has no default column family"))?;
        #[cfg_attr(not(feature = "newest"), expect(unused_mut, reason = "an option of the newest"))]
        let mut point = ReadOptions::default();
        if how.waiting == Waiting::MultiGetAsync || how.readahead == ScanReadahead::Async {
            #[cfg(feature = "newest")]
            point.set_async_io(how.waiting == Waiting::MultiGetAsync);
            #[cfg(not(feature = "newest"))]
            return Err(Error::failed("async_io needs the newest RocksDB"));
        }
        let key = Vec::with_capacity(dataset.key_bytes + 16);
        let mut write = WriteOptions::default();
        write.set_sync(how.sync);
        Ok(Self { shared, family, dataset, how, point, write, key, keys: Vec::new() })
    }

    /// Carries out one operation.
    pub(super) fn carry_out(&mut self, ticket: &Ticket) -> Result<Found> {
        let depth = ticket.depth;
        let columns = self.dataset.columns;
        match &ticket.op {
            Op::Get { row } | Op::GetAbsent { row } if self.how.columns == Columns::Iterator => {
                self.whole_row(*row, columns, depth)
            }
            Op::Get { row } | Op::GetAbsent { row } => self.row(*row, 0..columns, depth),
            Op::GetFamily { row } | Op::GetRow { row } => self.whole_row(*row, u32::MAX, depth),
            Op::GetColumns { row, first, count } => self.row(*row, *first..first + count, depth),
            Op::MultiGet { rows } => self.rows(rows, depth),
            Op::Scan { row, rows, reverse } => self.scan(*row, *rows, *reverse, depth),
            Op::Put { row } => {
                self.shared.put(&self.dataset, *row, &mut self.key, &self.write)?;
                Ok(Found::default())
            }
            op => Err(op.unsupported("RocksDB")),
        }
    }

    /// One value for the whole row?
    fn single(&self) -> bool {
        self.dataset.columns == 1 || self.shared.layout == Layout::Packed
    }

    /// Columns of a row, by their names.
    fn row(&mut self, row: u64, columns: std::ops::Range<u32>, depth: Depth) -> Result<Found> {
        if self.single() {
            self.dataset.key_into(row, &mut self.key);
            let value =
                self.shared.db.get_pinned_opt(&self.key, &self.point).map_err(failed("reading"))?;
            return match value {
                Some(value) => self.check_value(row, columns, &value, depth),
                None => Ok(Found::default()),
            };
        }
        let count = columns.len();
        for (at, column) in columns.clone().enumerate() {
            let key = slot(&mut self.keys, at);
            self.dataset.key_into(row, key);
            push_column(key, column);
        }
        // Qualifiers of up to ten columns sort as they are numbered.
        let values = self.multi_get(count, self.dataset.columns <= 10)?;
        let mut found = Found::default();
        for (column, value) in columns.zip(&values) {
            if let Some(value) = value {
                self.dataset.check(row, column, value, depth)?;
                found.value_bytes += value.len() as u64;
                found.rows = 1;
            }
        }
        if found.rows == 1 && values.iter().any(Option::is_none) {
            return Err(Error::mismatch(format!("row {row}: a column is missing")));
        }
        Ok(found)
    }

    /// A row by a scan of its keys where it has several: up to `most` of them, where it is known how many there are.
    fn whole_row(&mut self, row: u64, most: u32, depth: Depth) -> Result<Found> {
        if self.single() {
            return self.row(row, 0..self.dataset.columns, depth);
        }
        self.dataset.key_into(row, &mut self.key);
        let mut iterator = self.shared.db.raw_iterator_opt(ReadOptions::default());
        iterator.seek(&self.key);
        let mut found = Found::default();
        let mut column = 0;
        while let Some((key, value)) = iterator.item() {
            if !key.starts_with(&self.key) {
                break;
            }
            self.dataset.check(row, column, value, depth)?;
            column += 1;
            found = Found { rows: 1, value_bytes: found.value_bytes + value.len() as u64 };
            // Not a step further, as in a scan.
            if column == most {
                break;
            }
            iterator.next();
        }
        iterator.status().map_err(failed("reading"))?;
        Ok(found)
    }

    /// Several rows at once, all columns.
    fn rows(&mut self, rows: &[u64], depth: Depth) -> Result<Found> {
        let per_row = self.push_rows(rows);
        let values = self.multi_get(rows.len() * per_row, false)?;
        let mut found = Found::default();
        for (row, values) in rows.iter().zip(values.chunks(per_row)) {
            let one = self.check_row(*row, values, depth)?;
            found.rows += one.rows;
            found.value_bytes += one.value_bytes;
        }
        Ok(found)
    }

    /// Puts the keys of whole rows into the buffers; how many each row has.
    fn push_rows(&mut self, rows: &[u64]) -> usize {
        let per_row = if self.single() { 1 } else { self.dataset.columns as usize };
        for (at, row) in rows.iter().enumerate() {
            for column in 0..per_row {
                let key = slot(&mut self.keys, at * per_row + column);
                self.dataset.key_into(*row, key);
                if per_row > 1 {
                    push_column(key, column as u32);
                }
            }
        }
        per_row
    }

    fn check_row(&self, row: u64, values: &[Option<Value<'_>>], depth: Depth) -> Result<Found> {
        let mut found = Found::default();
        for (column, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let one = if self.single() {
                self.check_value(row, 0..self.dataset.columns, value, depth)?
            } else {
                self.dataset.check(row, column as u32, value, depth)?;
                Found { rows: 1, value_bytes: value.len() as u64 }
            };
            found = Found { rows: 1, value_bytes: found.value_bytes + one.value_bytes };
        }
        Ok(found)
    }

    /// Compares the wanted columns of a value that holds a whole row.
    fn check_value(
        &self,
        row: u64,
        columns: std::ops::Range<u32>,
        value: &[u8],
        depth: Depth,
    ) -> Result<Found> {
        if self.dataset.columns == 1 {
            self.dataset.check(row, 0, value, depth)?;
        } else {
            let size = self.dataset.value_bytes;
            for column in columns {
                let start = column as usize * size;
                let part = value.get(start..start + size).unwrap_or_default();
                self.dataset.check(row, column, part, depth)?;
            }
        }
        Ok(Found { rows: 1, value_bytes: value.len() as u64 })
    }

    fn multi_get(&self, keys: usize, sorted: bool) -> Result<Vec<Option<Value<'a>>>> {
        let keys = self.keys.get(..keys).unwrap_or_default();
        self.shared
            .db
            .batched_multi_get_cf_opt(self.family, keys, sorted, &self.point)
            .into_iter()
            .map(|value| value.map_err(failed("reading")))
            .collect()
    }

    fn scan(&mut self, row: u64, rows: u32, reverse: bool, depth: Depth) -> Result<Found> {
        let mut options = ReadOptions::default();
        match self.how.readahead {
            ScanReadahead::Auto => {}
            ScanReadahead::Bytes(bytes) => options.set_readahead_size(bytes),
            #[cfg(feature = "newest")]
            ScanReadahead::Async => options.set_async_io(true),
            #[cfg(not(feature = "newest"))]
            ScanReadahead::Async => {}
        }
        let per_row = if self.single() { 1 } else { u64::from(self.dataset.columns) };
        let mut left = u64::from(rows) * per_row;
        let mut iterator: DBRawIterator<'_> = self.shared.db.raw_iterator_opt(options);
        self.dataset.key_into(row, &mut self.key);
        if reverse {
            // Behind the last column of the row.
            self.key.push(u8::MAX);
            iterator.seek_for_prev(&self.key);
        } else {
            iterator.seek(&self.key);
        }
        let mut check = ScanCheck::new(&self.dataset, row, reverse, depth);
        let mut shown = None;
        let (mut keys, mut value_bytes) = (0_u64, 0_u64);
        while let Some((key, value)) = iterator.item() {
            let (row_key, qualifier) = key
                .split_at_checked(self.dataset.key_bytes)
                .ok_or_else(|| Error::mismatch("a scan shows a key that was not written"))?;
            if keys.is_multiple_of(per_row) {
                shown = check.row(row_key)?;
            }
            self.check_scanned(shown, qualifier, value, depth)?;
            keys += 1;
            value_bytes += value.len() as u64;
            left -= 1;
            // Not a step further: it could read a block that nobody asked for.
            if left == 0 {
                break;
            }
            if reverse {
                iterator.prev();
            } else {
                iterator.next();
            }
        }
        iterator.status().map_err(failed("scanning"))?;
        Ok(Found { rows: keys / per_row, value_bytes })
    }

    /// Compares a value whose row is known, else looks at its length alone: as every store here does.
    fn check_scanned(
        &self,
        row: Option<u64>,
        qualifier: &[u8],
        value: &[u8],
        depth: Depth,
    ) -> Result<()> {
        let Some(row) = row else {
            let columns = if self.single() { self.dataset.columns as usize } else { 1 };
            return if value.len() == columns * self.dataset.value_bytes {
                Ok(())
            } else {
                Err(Error::mismatch("a scan shows a value of another length"))
            };
        };
        if self.single() {
            return self.check_value(row, 0..self.dataset.columns, value, depth).map(|_| ());
        }
        let column = (0..self.dataset.columns)
            .find(|c| Dataset::qualifier(*c) == qualifier)
            .ok_or_else(|| Error::mismatch("a scan shows a column that was not written"))?;
        self.dataset.check(row, column, value, depth)
    }

    /// Runs a lane with a MultiGet of up to `batch` reads at a time; what is no point read is carried out by itself.
    pub(super) fn run_batches(&mut self, lane: &mut Lane<'_>, batch: usize) -> Result<()> {
        let mut tickets: Vec<Ticket> = Vec::with_capacity(batch);
        let mut rows: Vec<u64> = Vec::with_capacity(batch);
        loop {
            let next = lane.begin();
            let over = next.is_none();
            match next {
                Some(ticket) => match ticket.op {
                    Op::Get { row } | Op::GetAbsent { row } => {
                        rows.push(row);
                        tickets.push(ticket);
                    }
                    _ => {
                        let found = self.carry_out(&ticket)?;
                        lane.end(&ticket, found)?;
                    }
                },
                None if tickets.is_empty() => return Ok(()),
                None => {}
            }
            if tickets.len() < batch && !over {
                continue;
            }
            let per_row = self.push_rows(&rows);
            let values = self.multi_get(rows.len() * per_row, false)?;
            for (ticket, (row, values)) in
                tickets.iter().zip(rows.iter().zip(values.chunks(per_row)))
            {
                let found = self.check_row(*row, values, ticket.depth)?;
                lane.end(ticket, found)?;
            }
            tickets.clear();
            rows.clear();
        }
    }
}

/// A value borrowed from the block cache.
type Value<'a> = DBPinnableSlice<'a>;

/// Buffer number `at`, made where it is the next one.
fn slot(keys: &mut Vec<Vec<u8>>, at: usize) -> &mut Vec<u8> {
    if keys.len() <= at {
        keys.resize_with(at + 1, Vec::new);
    }
    // The line above made room for it.
    keys.get_mut(at).expect("buffer exists")
}
