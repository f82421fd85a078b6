//! Lines as people read them: the offset in the file first, where there is one.

use std::fmt;

use super::{Line, MutationLine, SstHead, VersionLine, shown};
use crate::manifest::{MetaRecord, SstRef, VersionEdit};

/// A count with its noun.
fn of(count: impl fmt::Display, noun: &str) -> String {
    format!("{count} {noun}")
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sst(head) => head.fmt(f),
            Self::Partition(p) => {
                write!(
                    f,
                    "{:>10}  index partition, {} bytes, {} blocks",
                    p.offset, p.bytes, p.blocks
                )
            }
            Self::Block(b) => write!(
                f,
                "{:>10}    data block, {} bytes, {} records ({} tombstones), rows \"{}\" to \"{}\"",
                b.offset,
                b.bytes,
                b.records,
                b.tombstones,
                b.from_row.escape_ascii(),
                b.to_row.escape_ascii()
            ),
            Self::Record(r) => {
                write!(f, "{:>10}      \"{}\" family {}", "", r.row, r.family)?;
                if let Some(qualifier) = &r.qualifier {
                    write!(f, " \"{qualifier}\"")?;
                }
                if let Some(timestamp) = r.timestamp {
                    write!(f, " @{timestamp}")?;
                }
                write!(f, " seq {} {} {} bytes", r.seq, r.kind, r.value_bytes)?;
                if r.value_bytes > 0 { write!(f, " \"{}\"", r.value) } else { Ok(()) }
            }
            Self::Filter { offset, bytes } => {
                write!(f, "{offset:>10}  filter partition, {bytes} bytes")
            }
            Self::ValueFile { id, bytes, values, value_bytes } => write!(
                f,
                "value file {id}, {bytes} bytes: {values} values of {value_bytes} bytes before compression"
            ),
            Self::File { kind, id, bytes } => write!(f, "{kind} {id:016x}, {bytes} bytes"),
            Self::Segments { offset, segments } => {
                write!(f, "{offset:>10}  segments: {}", segments.join(" "))
            }
            Self::Changes { offset, names } => {
                write!(f, "{offset:>10}  files: {}", names.join(" "))
            }
            Self::Opening { offset, previous: 0, .. } => {
                write!(f, "{offset:>10}  opening: no segment before")
            }
            Self::Opening { offset, previous, previous_bytes } => write!(
                f,
                "{offset:>10}  opening: after segment {previous:016x} of {previous_bytes} bytes"
            ),
            Self::Marker { offset, durable } => {
                write!(f, "{offset:>10}  marker: synced to {durable}")
            }
            Self::Batch { offset, tablet, first_seq, last_seq, row, mutations, .. } => {
                write!(
                    f,
                    "{offset:>10}  tablet {tablet} seq {first_seq} to {last_seq} row \"{row}\": {}",
                    of(mutations.len(), "mutations")
                )?;
                mutations.iter().try_for_each(|mutation| write!(f, "\n{:>12}{mutation}", ""))
            }
            Self::Edit { offset, edit } => {
                write!(f, "{offset:>10}  edit")?;
                write_edit(f, edit)
            }
            Self::Version(version) => version.fmt(f),
            Self::Backup { offset, tablets, value_files } => {
                write!(f, "{offset:>10}  backup of {}", of(tablets.len(), "tablets"))?;
                tablets.iter().try_for_each(|version| write!(f, "\n{version}"))?;
                value_files
                    .iter()
                    .try_for_each(|(id, bytes)| write!(f, "\n  value file {id}: {bytes} bytes"))
            }
            Self::Meta { offset, record } => {
                write!(f, "{offset:>10}  ")?;
                write_meta(f, record)
            }
            Self::Damage { offset, bytes, error } => {
                write!(f, "{offset:>10}  DAMAGED, {bytes} bytes: {error}")
            }
            Self::End { valid_bytes, torn_bytes: 0 } => write!(f, "{valid_bytes:>10}  end"),
            Self::End { valid_bytes, torn_bytes } => write!(
                f,
                "{valid_bytes:>10}  end; {torn_bytes} bytes behind it were cut short, or are being written"
            ),
        }
    }
}

impl fmt::Display for SstHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [row, family, column, cell] = self.tombstones;
        let ([first, last], [min, max]) = (&self.row_range, &self.seqs);
        let at = |place: Option<(u64, u64)>| {
            place.map_or("none".to_owned(), |(at, len)| format!("{len} bytes at {at}"))
        };
        writeln!(f, "SST {}, {} bytes, {} resident", self.id, self.bytes, self.resident_bytes)?;
        writeln!(f, "  rows          {}, \"{first}\" to \"{last}\"", self.rows)?;
        writeln!(f, "  records       {}, {} of them cells", self.entries, self.cells)?;
        writeln!(f, "  tombstones    row {row}, family {family}, column {column}, cell {cell}")?;
        writeln!(f, "  sequences     {min} to {max}")?;
        writeln!(f, "  raw bytes     {} of keys, {} of values", self.key_bytes, self.value_bytes)?;
        writeln!(f, "  data blocks   {}, {} bytes between", self.data_blocks, self.padding_bytes)?;
        writeln!(f, "  index         {} bytes", self.index_bytes)?;
        let filter = &self.filter;
        let kinds = ["Bloom", "fuse 8", "fuse 16"].into_iter().zip(1u32..);
        let kinds = kinds.filter(|(_, kind)| filter.kinds >> kind & 1 != 0).map(|(name, _)| name);
        writeln!(
            f,
            "  filter        {} bytes, {} entries in {} partitions, {} with common columns; {}",
            filter.bytes,
            filter.entries,
            filter.partitions,
            filter.common_partitions,
            kinds.collect::<Vec<_>>().join(", "),
        )?;
        writeln!(f, "  created       {} us since 1970", self.created_micros)?;
        writeln!(f, "  properties    {}", at(Some(self.places.properties)))?;
        writeln!(f, "  top index     {}", at(Some(self.places.top_index)))?;
        writeln!(f, "  filter index  {}", at(self.places.filter_index))?;
        writeln!(f, "  coarse filter {}", at(self.places.coarse_filter))?;
        write!(f, "  dictionary    {}", at(self.places.dictionary))?;
        self.families.iter().try_for_each(|family| {
            let [min, max] = family.timestamps;
            write!(
                f,
                "\n  family {}: {} records, {} cells with timestamps {min} to {max}, {} tombstones, \
                 at most {} versions of a column",
                family.id, family.entries, family.cells, family.tombstones, family.column_versions_max
            )
        })?;
        self.value_files
            .iter()
            .try_for_each(|(id, bytes)| write!(f, "\n  value file {id}: {bytes} bytes"))
    }
}

impl fmt::Display for MutationLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        if let Some(family) = self.family {
            write!(f, " family {family}")?;
        }
        if let Some(qualifier) = &self.qualifier {
            write!(f, " \"{qualifier}\"")?;
        }
        match self.timestamps.as_slice() {
            [] => {}
            [at] => write!(f, " @{at}")?,
            range => write!(f, " @{range:?}")?,
        }
        match (&self.value_bytes, &self.value) {
            (Some(bytes), Some(value)) => write!(f, " {bytes} bytes \"{value}\""),
            _ => Ok(()),
        }
    }
}

fn write_sst(f: &mut fmt::Formatter<'_>, sst: &SstRef) -> fmt::Result {
    write!(
        f,
        "SST {:016x} level {}, {} bytes, {} records, seq {} to {}, rows \"{}\" to \"{}\", shown from \"{}\" to \"{}\"",
        sst.id,
        sst.level,
        sst.bytes,
        sst.entries,
        sst.min_seq,
        sst.max_seq,
        sst.first_row.escape_ascii(),
        sst.last_row.escape_ascii(),
        sst.visible.start.escape_ascii(),
        sst.visible.end.escape_ascii()
    )
}

fn write_edit(f: &mut fmt::Formatter<'_>, edit: &VersionEdit) -> fmt::Result {
    if let Some(range) = &edit.range {
        let (start, end) = (range.start.escape_ascii(), range.end.escape_ascii());
        write!(f, "\n{:>12}rows from \"{start}\" to \"{end}\"", "")?;
    }
    for (level, id) in &edit.remove {
        write!(f, "\n{:>12}remove SST {id:016x} level {level}", "")?;
    }
    for sst in &edit.add {
        write!(f, "\n{:>12}add ", "")?;
        write_sst(f, sst)?;
    }
    if let Some(seq) = edit.flushed_seq {
        write!(f, "\n{:>12}flushed to seq {seq}", "")?;
    }
    for (what, ranges) in [("drop", &edit.add_excised), ("forget drop of", &edit.remove_excised)] {
        for e in ranges {
            let (start, end) = (e.range.start.escape_ascii(), e.range.end.escape_ascii());
            let seq = e.seq;
            write!(f, "\n{:>12}{what} rows from \"{start}\" to \"{end}\", to seq {seq}", "")?;
        }
    }
    if let Some(seq) = edit.last_seq {
        write!(f, "\n{:>12}last seq {seq}", "")?;
    }
    Ok(())
}

impl fmt::Display for VersionLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [start, end] = &self.range;
        write!(
            f,
            "version: rows from \"{start}\" to \"{end}\", flushed to seq {}, last seq {}, {} bytes",
            self.flushed_seq, self.last_seq, self.bytes
        )?;
        for sst in self.levels.iter().flatten() {
            write!(f, "\n  ")?;
            write_sst(f, sst)?;
        }
        self.dropped.iter().try_for_each(|(start, end, seq)| {
            write!(f, "\n  dropped rows from \"{start}\" to \"{end}\", to seq {seq}")
        })
    }
}

fn write_meta(f: &mut fmt::Formatter<'_>, record: &MetaRecord) -> fmt::Result {
    match record {
        MetaRecord::Snapshot { revision, entries } => {
            write!(f, "snapshot at revision {revision}, {}", of(entries.len(), "entries"))?;
            entries.iter().try_for_each(|(key, revision, value)| {
                let value = shown(value);
                write!(f, "\n{:>12}{key} (revision {revision}) = \"{value}\"", "")
            })
        }
        MetaRecord::Commit { revision, changes } => {
            write!(f, "commit of revision {revision}")?;
            changes.iter().try_for_each(|(key, value)| match value {
                Some(value) => write!(f, "\n{:>12}set {key} = \"{}\"", "", shown(value)),
                None => write!(f, "\n{:>12}delete {key}", ""),
            })
        }
    }
}
