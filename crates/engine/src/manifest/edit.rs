//! Version edits: what changes in a tablet's set of live SSTs, and their encoding.
//!
//! ```text
//! edit:   field | field | ...
//! field:  tag varint | body length varint | body          (codec: crate::codec)
//!
//! tag  field           body                                                         times
//!   1  range           start bytes | end bytes                                      0..1
//!   2  add             id | level | visible start bytes | visible end bytes | bytes  0..n
//!                      | first row bytes | last row bytes | min seq | max seq | entries
//!   3  remove          level | id                                                   0..n
//!   4  flushed seq     seq                                                          0..1
//!   5  add excised     start bytes | end bytes | seq                                0..n
//!   6  remove excised  start bytes | end bytes | seq                                0..n
//!   7  last seq        seq                                                          0..1
//!   8  tablet          number                                                       0..1
//! ```
//!
//! Fields stand in the order of their tags. An unknown tag is refused rather than skipped: who does not
//! know what a field says about the live files cannot know which files are live.

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::cell::{RowRange, Seq};
use crate::codec::{BytesReader, Malformed, put_bytes, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::sst::FileId;
use crate::tablet::TabletId;

/// Levels of a tablet. With each ten times the one above, seven hold more than a machine's disks.
pub const LEVELS: usize = 7;

mod tag {
    pub const RANGE: u64 = 1;
    pub const ADD: u64 = 2;
    pub const REMOVE: u64 = 3;
    pub const FLUSHED_SEQ: u64 = 4;
    pub const ADD_EXCISED: u64 = 5;
    pub const REMOVE_EXCISED: u64 = 6;
    pub const LAST_SEQ: u64 = 7;
    pub const TABLET: u64 = 8;
}

/// A live SST of a tablet: which file, where in the tree, and which of its rows are the tablet's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SstRef {
    /// The file.
    pub id: FileId,
    /// Its level, below [`LEVELS`].
    pub level: u8,
    /// The rows of it that are visible; others in the file belong to another tablet, or to none.
    #[serde(serialize_with = "range_as_text")]
    pub visible: RowRange,
    /// Bytes of the file; where dropped rows, or a compaction that is done with some, cut it, roughly those of the part that is visible.
    pub bytes: u64,
    /// The first row in the file.
    #[serde(serialize_with = "row_as_text")]
    pub first_row: Bytes,
    /// The last row in the file.
    #[serde(serialize_with = "row_as_text")]
    pub last_row: Bytes,
    /// The least sequence in the file.
    pub min_seq: Seq,
    /// The greatest sequence in the file.
    pub max_seq: Seq,
    /// Records in the file.
    pub entries: u64,
}

#[cfg(test)]
impl SstRef {
    /// A whole file of one record, as old as its id tells.
    pub(crate) fn of_test(
        id: FileId,
        level: u8,
        (first_row, last_row): (Bytes, Bytes),
        bytes: u64,
    ) -> Self {
        let visible = RowRange::all();
        Self {
            id,
            level,
            visible,
            bytes,
            first_row,
            last_row,
            min_seq: id,
            max_seq: id,
            entries: 1,
        }
    }
}

impl SstRef {
    /// The rows that the SST can show: those of the file that are visible.
    pub fn span(&self) -> RowRange {
        let mut after_last = Vec::with_capacity(self.last_row.len() + 1);
        after_last.extend_from_slice(&self.last_row);
        after_last.push(0);
        RowRange::new(self.first_row.clone(), after_last).intersect(&self.visible)
    }

    /// The first row that the SST can show: of the file or of the visible range, whichever is later.
    pub fn first_visible(&self) -> &Bytes {
        (&self.first_row).max(&self.visible.start)
    }

    /// Whether the SST can hold something visible for `row`.
    pub fn may_contain(&self, row: &[u8]) -> bool {
        self.visible.contains(row) && *self.first_row <= *row && *row <= *self.last_row
    }

    /// Whether the SST can hold something visible in `range`.
    pub fn overlaps(&self, range: &RowRange) -> bool {
        let shown = self.visible.intersect(range);
        !shown.is_empty()
            && self.first_row <= self.last_row
            && *self.last_row >= *shown.start
            && (shown.end.is_empty() || *self.first_row < *shown.end)
    }

    /// Whether rows of the file are not visible through it.
    pub fn is_cut(&self) -> bool {
        let RowRange { start, end } = &self.visible;
        *start > self.first_row || (!end.is_empty() && *end <= self.last_row)
    }

    /// Whether all that the SST can show lies before `row`.
    pub fn ends_before(&self, row: &[u8]) -> bool {
        *self.last_row < *row || (!self.visible.end.is_empty() && *self.visible.end <= *row)
    }
}

/// Rows that were dropped: of the rows in `range`, records with sequences up to `seq` are invisible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Excised {
    /// The rows.
    #[serde(serialize_with = "range_as_text")]
    pub range: RowRange,
    /// The last sequence that is dropped.
    pub seq: Seq,
}

/// One atomic change of a [`Version`](super::Version). Removals come before additions, so that one edit
/// can move an SST to another level or change its visible range.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VersionEdit {
    /// The tablet's rows from now on. SSTs show no more than this.
    #[serde(serialize_with = "optional_range_as_text", skip_serializing_if = "Option::is_none")]
    pub range: Option<RowRange>,
    /// SSTs that become live.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<SstRef>,
    /// SSTs that cease to be live, by level and id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<(u8, FileId)>,
    /// Log records of this tablet with sequences up to this one need no replay. Never decreases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flushed_seq: Option<Seq>,
    /// Ranges dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_excised: Vec<Excised>,
    /// Dropped ranges of which no SST holds anything any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_excised: Vec<Excised>,
    /// The greatest sequence that was ever used, the floor of the clock after a restart. The greatest of
    /// all edits counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seq: Option<Seq>,
    /// Whose manifest it is in. Snapshots of manifests say it, but for those that earlier versions wrote.
    #[serde(serialize_with = "optional_tablet_as_text", skip_serializing_if = "Option::is_none")]
    pub tablet: Option<TabletId>,
}

impl VersionEdit {
    /// Appends the encoded edit.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let mut field = |tag, fill: &dyn Fn(&mut Vec<u8>)| {
            body.clear();
            fill(&mut body);
            put_u64(out, tag);
            put_bytes(out, &body);
        };
        if let Some(range) = &self.range {
            field(tag::RANGE, &|b| put_range(b, range));
        }
        for sst in &self.add {
            field(tag::ADD, &|b| put_sst(b, sst));
        }
        for (level, id) in &self.remove {
            field(tag::REMOVE, &|b| {
                put_u64(b, u64::from(*level));
                put_u64(b, *id);
            });
        }
        if let Some(seq) = self.flushed_seq {
            field(tag::FLUSHED_SEQ, &|b| put_u64(b, seq));
        }
        for excised in &self.add_excised {
            field(tag::ADD_EXCISED, &|b| put_excised(b, excised));
        }
        for excised in &self.remove_excised {
            field(tag::REMOVE_EXCISED, &|b| put_excised(b, excised));
        }
        if let Some(seq) = self.last_seq {
            field(tag::LAST_SEQ, &|b| put_u64(b, seq));
        }
        if let Some(tablet) = self.tablet {
            field(tag::TABLET, &|b| put_u64(b, tablet.0));
        }
    }

    /// Decodes a whole edit. `Corruption` where it is malformed, `InvalidArgument` where it holds what a
    /// newer version wrote.
    pub fn decode(bytes: Bytes) -> Result<Self> {
        let mut edit = Self::default();
        let mut reader = BytesReader::new(bytes);
        let mut last_tag = 0;
        while !reader.is_empty() {
            let start = reader.position();
            let at = |what| Malformed { at: start, what };
            let tag = reader.u64()?;
            let mut body = BytesReader::new(reader.bytes()?);
            let body_at = reader.position() - body.remaining();
            if !(tag::RANGE..=tag::TABLET).contains(&tag) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("byte {start}: field {tag} was written by a newer version"),
                ));
            }
            if tag < last_tag {
                return Err(at("fields are out of order").into());
            }
            let once = [tag::RANGE, tag::FLUSHED_SEQ, tag::LAST_SEQ, tag::TABLET];
            if tag == last_tag && once.contains(&tag) {
                return Err(at("field is there twice").into());
            }
            last_tag = tag;
            edit.decode_field(tag, &mut body)
                .and_then(|()| body.finish())
                .map_err(|e| Malformed { at: body_at + e.at, what: e.what })?;
        }
        Ok(edit)
    }

    fn decode_field(&mut self, tag: u64, body: &mut BytesReader) -> Result<(), Malformed> {
        match tag {
            tag::RANGE => self.range = Some(read_range(body)?),
            tag::ADD => self.add.push(read_sst(body)?),
            tag::REMOVE => self.remove.push((read_level(body)?, body.u64()?)),
            tag::FLUSHED_SEQ => self.flushed_seq = Some(body.u64()?),
            tag::ADD_EXCISED => self.add_excised.push(read_excised(body)?),
            tag::REMOVE_EXCISED => self.remove_excised.push(read_excised(body)?),
            tag::LAST_SEQ => self.last_seq = Some(body.u64()?),
            _ => self.tablet = Some(TabletId(body.u64()?)),
        }
        Ok(())
    }
}

fn put_range(out: &mut Vec<u8>, range: &RowRange) {
    put_bytes(out, &range.start);
    put_bytes(out, &range.end);
}

fn read_range(body: &mut BytesReader) -> Result<RowRange, Malformed> {
    Ok(RowRange { start: body.bytes()?, end: body.bytes()? })
}

fn put_sst(out: &mut Vec<u8>, sst: &SstRef) {
    put_u64(out, sst.id);
    put_u64(out, u64::from(sst.level));
    put_range(out, &sst.visible);
    put_u64(out, sst.bytes);
    put_bytes(out, &sst.first_row);
    put_bytes(out, &sst.last_row);
    put_u64(out, sst.min_seq);
    put_u64(out, sst.max_seq);
    put_u64(out, sst.entries);
}

fn read_sst(body: &mut BytesReader) -> Result<SstRef, Malformed> {
    // Struct fields are evaluated in the order written here, which is that of `put_sst`.
    Ok(SstRef {
        id: body.u64()?,
        level: read_level(body)?,
        visible: read_range(body)?,
        bytes: body.u64()?,
        first_row: body.bytes()?,
        last_row: body.bytes()?,
        min_seq: body.u64()?,
        max_seq: body.u64()?,
        entries: body.u64()?,
    })
}

fn read_level(body: &mut BytesReader) -> Result<u8, Malformed> {
    let bad = body.malformed("no such level");
    let level = u8::try_from(body.u64()?).map_err(|_| bad)?;
    if usize::from(level) < LEVELS { Ok(level) } else { Err(bad) }
}

fn put_excised(out: &mut Vec<u8>, excised: &Excised) {
    put_range(out, &excised.range);
    put_u64(out, excised.seq);
}

fn read_excised(body: &mut BytesReader) -> Result<Excised, Malformed> {
    Ok(Excised { range: read_range(body)?, seq: body.u64()? })
}

fn row_as_text<S: Serializer>(row: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&row.escape_ascii())
}

/// `["start", "end"]`, bytes escaped as in a Rust byte string.
fn range_as_text<S: Serializer>(range: &RowRange, serializer: S) -> Result<S::Ok, S::Error> {
    [range.start.escape_ascii().to_string(), range.end.escape_ascii().to_string()]
        .serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn optional_range_as_text<S: Serializer>(
    range: &Option<RowRange>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match range {
        Some(range) => range_as_text(range, serializer),
        None => serializer.serialize_none(),
    }
}

/// As in the name of its directory.
#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn optional_tablet_as_text<S: Serializer>(
    tablet: &Option<TabletId>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match tablet {
        Some(tablet) => serializer.collect_str(&format_args!("{:016x}", tablet.0)),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::hex;

    fn row() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from)
    }

    fn range() -> impl Strategy<Value = RowRange> {
        (row(), row()).prop_map(|(a, b)| RowRange::new(a, b))
    }

    fn sst() -> impl Strategy<Value = SstRef> {
        (any::<u64>(), 0..LEVELS as u8, range(), (row(), row()), any::<[u64; 4]>()).prop_map(
            |(id, level, visible, (first_row, last_row), [bytes, min_seq, max_seq, entries])| {
                SstRef { id, level, visible, bytes, first_row, last_row, min_seq, max_seq, entries }
            },
        )
    }

    fn excised() -> impl Strategy<Value = Excised> {
        (range(), any::<u64>()).prop_map(|(range, seq)| Excised { range, seq })
    }

    fn edit() -> impl Strategy<Value = VersionEdit> {
        use proptest::collection::vec;
        (
            proptest::option::of(range()),
            vec(sst(), 0..4),
            vec((0..LEVELS as u8, any::<u64>()), 0..4),
            any::<[Option<u64>; 3]>(),
            vec(excised(), 0..3),
            vec(excised(), 0..3),
        )
            .prop_map(
                |(
                    range,
                    add,
                    remove,
                    [flushed_seq, last_seq, tablet],
                    add_excised,
                    remove_excised,
                )| {
                    VersionEdit {
                        range,
                        add,
                        remove,
                        flushed_seq,
                        add_excised,
                        remove_excised,
                        last_seq,
                        tablet: tablet.map(TabletId),
                    }
                },
            )
    }

    fn encoded(edit: &VersionEdit) -> Vec<u8> {
        let mut out = Vec::new();
        edit.encode(&mut out);
        out
    }

    proptest! {
        #[test]
        fn edits_come_back_as_they_were(edit in edit()) {
            prop_assert_eq!(VersionEdit::decode(encoded(&edit).into()).unwrap(), edit);
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            edit in edit(),
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
            cut in any::<usize>(),
        ) {
            let mut bytes = encoded(&edit);
            for (at, byte) in changes {
                let len = bytes.len().max(1);
                if let Some(b) = bytes.get_mut(at % len) { *b = byte; }
            }
            bytes.truncate(cut % (bytes.len() + 1));
            if let Ok(decoded) = VersionEdit::decode(bytes.clone().into()) {
                prop_assert_eq!(encoded(&decoded), bytes);
            }
        }

        #[test]
        fn random_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = VersionEdit::decode(raw.into());
        }
    }

    /// An edit with every field, for the written format.
    pub fn full_edit() -> VersionEdit {
        VersionEdit {
            range: Some(RowRange::new(&b"a"[..], &b"z"[..])),
            add: vec![SstRef {
                id: 300,
                level: 1,
                visible: RowRange::new(&b"b"[..], &b""[..]),
                bytes: 4096,
                first_row: Bytes::from_static(b"a\x00"),
                last_row: Bytes::from_static(b"x\xFF"),
                min_seq: 5,
                max_seq: 1 << 40,
                entries: 17,
            }],
            remove: vec![(0, 299)],
            flushed_seq: Some(1000),
            add_excised: vec![Excised { range: RowRange::prefix(b"p"), seq: 9 }],
            remove_excised: vec![Excised { range: RowRange::all(), seq: 8 }],
            last_seq: Some(u64::MAX),
            tablet: Some(TabletId(0x1_0000)),
        }
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        let bytes = encoded(&full_edit());
        assert_eq!(hex(&bytes), include_str!("testdata/edit.hex").trim());
    }

    #[test]
    fn unknown_fields_and_repeated_ones_are_refused() {
        let unknown = VersionEdit::decode(Bytes::from_static(&[4, 1, 0, 99, 0])).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
        assert_eq!(unknown.message(), "byte 3: field 99 was written by a newer version");
        for bad in [
            &[4, 1, 0, 4, 1, 0][..],
            &[8, 1, 1, 8, 1, 1],
            &[7, 1, 0, 4, 1, 0],
            &[4, 2, 0, 0],
            &[3, 2, 7, 1],
        ] {
            let error = VersionEdit::decode(Bytes::copy_from_slice(bad)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{bad:?}");
        }
    }

    #[test]
    fn json_shows_rows_as_escaped_text() {
        let json = serde_json::to_string(&full_edit()).unwrap();
        for part in [
            r#""range":["a","z"]"#,
            r#""first_row":"a\\x00""#,
            r#""last_row":"x\\xff""#,
            r#""tablet":"0000000000010000""#,
        ] {
            assert!(json.contains(part), "{part} in {json}");
        }
        assert_eq!(serde_json::to_string(&VersionEdit::default()).unwrap(), "{}");
    }

    #[test]
    fn an_sst_shows_only_rows_that_are_in_the_file_and_visible() {
        let mut sst = full_edit().add.remove(0);
        sst.visible = RowRange::new(&b"c"[..], &b"m"[..]);
        (sst.first_row, sst.last_row) = (Bytes::from_static(b"a"), Bytes::from_static(b"x"));
        assert_eq!(sst.first_visible(), "c");
        for (row, shows) in [("a", false), ("c", true), ("lz", true), ("m", false), ("x", false)] {
            assert_eq!(sst.may_contain(row.as_bytes()), shows, "{row}");
            assert_eq!(sst.overlaps(&RowRange::row(row.as_bytes())), shows, "{row}");
        }
        assert!(sst.ends_before(b"m") && !sst.ends_before(b"lz"));
        assert!(!sst.overlaps(&RowRange::new(&b"m"[..], &b""[..])));
        sst.last_row = Bytes::from_static(b"e");
        assert!(sst.ends_before(b"e\0") && !sst.ends_before(b"e"));
        assert!(!sst.overlaps(&RowRange::new(&b"f"[..], &b"g"[..])));
    }
}
