//! Sketches against those that ZetaSketch makes of the same values, and against themselves in other orders.

use proptest::prelude::*;

use super::*;

pub(super) fn int64(value: u64) -> Sketch {
    Sketch::of_one(ValueType::Int64, fingerprint(&value.to_le_bytes()))
}

pub(super) fn text(value: &str) -> Sketch {
    Sketch::of_one(ValueType::Bytes, fingerprint(value.as_bytes()))
}

pub(super) fn merged(sketches: impl IntoIterator<Item = Sketch>) -> Sketch {
    sketches
        .into_iter()
        .reduce(|mut all, next| {
            all.merge(&next);
            all
        })
        .unwrap()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// FNV-1a, for what is too long to be written down.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A sketch as others might send it.
fn sent(kind: i32, value_type: i32, unique: UniqueState) -> Vec<u8> {
    let state = AggregatorState {
        kind: Some(kind),
        num_values: Some(1),
        encoding_version: Some(ENCODING_VERSION),
        value_type: Some(value_type),
        unique: Some(unique),
    };
    state.encode_to_vec()
}

#[test]
fn small_sketches_have_the_bytes_of_zetasketchs() {
    for (sketch, want) in [
        (int64(0), "087010011802200882070b1001180f20143203a2a721"),
        (merged((0..3).map(int64)), "08701003180220088207101003180f20143208acfc20f62af4fb0c"),
        (text("user-0"), "087010011802200b82070b1001180f201432039d9e17"),
        (
            merged((0..3).map(|i| text(&format!("user-{i}")))),
            "087010031802200b8207111003180f20143209ade00bf0bd0bdd8b09",
        ),
    ] {
        assert_eq!(hex(&sketch.encode()), want);
    }
}

#[test]
fn large_sketches_have_the_bytes_of_zetasketchs() {
    for (count, len, want) in [
        (100, 243, 0x91d5_a48e_994a_f3f5),
        (1_000, 1_947, 0xd5be_dd0d_3a70_e9e5),
        (5_000, 7_842, 0xcf3a_49e0_37c6_7037),
        (9_000, 12_272, 0x3727_1180_6e9a_df61),
        (12_000, 15_101, 0x1d56_7b6e_df2c_2c85),
        (20_000, 22_243, 0x2793_da6b_c0de_44cf),
        (100_000, 32_791, 0xd537_cf4d_218f_8d63),
    ] {
        let bytes = merged((0..count).map(|i| int64(i * 7))).encode();
        assert_eq!((bytes.len(), digest(&bytes)), (len, want), "of {count} values");
    }
    let long = |i: u64| text(&(i * i).to_string().repeat((i % 13) as usize));
    let bytes = merged((0..9_000).map(long)).encode();
    assert_eq!((bytes.len(), digest(&bytes)), (11_594, 0x2573_f0a4_db6e_0ae2));
}

#[test]
fn a_sketch_of_nothing_is_read_and_adds_nothing() {
    let bytes = "0870100018022008820706180f20143200";
    let bytes: Vec<u8> = (0..bytes.len() / 2)
        .map(|i| u8::from_str_radix(&bytes[i * 2..i * 2 + 2], 16).unwrap())
        .collect();
    let nothing = Sketch::decode(ValueType::Int64, &bytes).unwrap();
    assert_eq!(nothing.encode(), bytes);
    assert_eq!(merged([nothing, int64(5)]), int64(5));
}

/// A sketch of precision (normal, sparse) of these hashes.
fn with_precision(from: Precision, hashes: &[u64], is_dense: bool) -> Vec<u8> {
    let mut unique = UniqueState {
        precision: from.normal as i32,
        sparse_precision: from.sparse as i32,
        ..UniqueState::default()
    };
    if is_dense {
        let mut registers = vec![0; from.registers()];
        for hash in hashes {
            raise(&mut registers, from.register(from.parse(from.value(*hash)).unwrap()));
        }
        unique.data = Some(registers);
    } else {
        let mut values: Vec<u32> = hashes.iter().map(|hash| from.value(*hash)).collect();
        values.sort_unstable();
        values.dedup();
        unique.sparse_size = values.len() as i32;
        unique.sparse_data = Some(distances(values.into_iter()));
    }
    sent(TYPE, ValueType::Int64.id(), unique)
}

#[test]
fn a_sketch_of_greater_precision_is_lowered_when_it_arrives() {
    let hashes: Vec<u64> = (0..1_000_u64).map(|i| fingerprint(&(i * 7).to_le_bytes())).collect();
    let ours = merged((0..1_000).map(|i| int64(i * 7)));
    for (normal, sparse) in [(15, 20), (16, 25), (18, 23), (20, 20), (24, 25)] {
        let from = Precision { normal, sparse };
        let mut lowered =
            Sketch::decode(ValueType::Int64, &with_precision(from, &hashes, false)).unwrap();
        lowered.num_values = 1_000;
        assert_eq!(lowered.encode(), ours.encode(), "{from:?}");
        let dense = Sketch::decode(ValueType::Int64, &with_precision(from, &hashes, true)).unwrap();
        let Registers::Sparse(values) = &ours.registers else { panic!("few values are sparse") };
        assert_eq!(dense.registers, registers_of(values), "{from:?}");
    }
    // What a sparse sketch of a lesser sparse precision knows is enough for registers.
    let from = Precision { normal: 15, sparse: 18 };
    let dense = Sketch::decode(ValueType::Int64, &with_precision(from, &hashes, false)).unwrap();
    let Registers::Sparse(values) = &ours.registers else { panic!("few values are sparse") };
    assert_eq!(dense.registers, registers_of(values));
}

#[test]
fn many_values_of_a_greater_precision_are_lowered_as_few_are() {
    let from = Precision { normal: 24, sparse: 25 };
    let hashes: Vec<u64> = (0..100_000_u64).map(|i| fingerprint(&i.to_le_bytes())).collect();
    for count in [24_000, 26_000, 60_000, 100_000] {
        let some = &hashes[..count];
        let mut lowered =
            Sketch::decode(ValueType::Int64, &with_precision(from, some, false)).unwrap();
        lowered.num_values = count as i64;
        assert_eq!(lowered.encode(), merged((0..count as u64).map(int64)).encode(), "{count}");
    }
}

#[test]
fn few_values_that_only_registers_have_room_for_are_refused_where_they_are_sent_and_merged_where_they_are_stored()
 {
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as Value;

    use crate::value_type::{AggregateType, Input};

    let family = AggregateType::unique_count(Input::Int64);
    let from = Precision { normal: 15, sparse: 18 };
    let hashes: Vec<u64> = (0..20_u64).map(|i| fingerprint(&i.to_le_bytes())).collect();
    let mut all = UNIQUE_INT64.begin(&int64(0).encode()).unwrap();
    for count in 0..=hashes.len() {
        let state = with_precision(from, &hashes[..count], false);
        let sent = family.merged(Some(&Value::RawValue(state.clone().into())));
        if count == 0 {
            assert!(sent.unwrap().unwrap().len() <= state.len());
        } else {
            let error = sent.unwrap_err();
            let text = "its sparse_precision is 18; make it with 20 or more";
            assert!(error.message().contains(text), "{error}");
        }
        assert!(all.add(&state));
    }
    let dense = Sketch::decode(ValueType::Int64, &with_precision(from, &hashes, true)).unwrap();
    let all = Sketch::decode(ValueType::Int64, &all.encode()).unwrap();
    assert!(all.registers == dense.registers, "other registers than of all at once");
}

#[test]
fn sketches_as_the_libraries_make_them_by_themselves_are_taken() {
    let hashes: Vec<u64> = (0..20_u64).map(|i| fingerprint(&i.to_le_bytes())).collect();
    let take = |bytes: &[u8]| Sketch::decode_new(ValueType::Int64, bytes);
    for normal in 15..=24 {
        let from = Precision { normal, sparse: (normal + 5).min(Precision::SPARSE_MAX) };
        for is_dense in [false, true] {
            take(&with_precision(from, &hashes, is_dense)).unwrap();
        }
    }
    // What registers know is not told by the other precision.
    take(&with_precision(Precision { normal: 15, sparse: 15 }, &hashes, true)).unwrap();
    let error = take(&with_precision(Precision { normal: 10, sparse: 15 }, &hashes, false));
    assert!(error.unwrap_err().contains("its precision is 10; make it with 15 or more"));
}

#[test]
fn what_is_longer_than_any_sketch_is_refused_as_it_came() {
    let error = Sketch::decode_new(ValueType::Int64, &vec![0; NEW_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error, "it has 16778241 bytes; limit 16778240");
}

#[test]
fn what_is_no_sketch_of_such_values_is_refused_with_a_reason() {
    let good = || UniqueState { precision: 15, sparse_precision: 20, ..UniqueState::default() };
    let int64 = ValueType::Int64.id();
    let sparse = |data: &[u8]| UniqueState { sparse_data: Some(data.to_vec()), ..good() };
    let dense = |data: Vec<u8>| UniqueState { data: Some(data), ..good() };
    for (bytes, why) in [
        (vec![0xff; 3], "it is no sketch"),
        (vec![], "its type is 0, not 112"),
        (sent(100, int64, good()), "its type is 100"),
        (sent(TYPE, 11, good()), "it counts values of type 11, not 8"),
        (sent(TYPE, int64, UniqueState::default()), "its precision is 0"),
        (sent(TYPE, int64, UniqueState { precision: 14, ..good() }), "make it with 15 or more"),
        (
            sent(TYPE, int64, UniqueState { sparse_precision: 14, ..good() }),
            "sparse_precision is 14",
        ),
        (
            sent(TYPE, int64, UniqueState { sparse_precision: 26, ..good() }),
            "sparse_precision is 26",
        ),
        (
            sent(TYPE, int64, UniqueState { sparse_precision: 0, ..sparse(&[1]) }),
            "no sparse_precision",
        ),
        (sent(TYPE, int64, sparse(&[0])), "its sparse_data is damaged"),
        (sent(TYPE, int64, sparse(&[0x80])), "its sparse_data is damaged"),
        (
            sent(TYPE, int64, sparse(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f])),
            "its sparse_data is damaged",
        ),
        (sent(TYPE, int64, sparse(&vec![1; 40_000])), "40000 bytes"),
        (sent(TYPE, int64, dense(vec![1; 5])), "its data has 5 bytes, not 32768"),
        (sent(TYPE, int64, dense(vec![51; 1 << 15])), "its data is damaged"),
    ] {
        let error = Sketch::decode(ValueType::Int64, &bytes).unwrap_err();
        assert!(error.contains(why), "{error:?} has no {why:?}");
        let mut state = UNIQUE_INT64.begin(&super::tests::int64(1).encode()).unwrap();
        assert!(!state.add(&bytes));
        assert_eq!(state.encode(), super::tests::int64(1).encode());
        assert!(UNIQUE_INT64.begin(&bytes).is_none());
    }
    // Both integer types are hashed alike, and a sketch may not know what it counts.
    for id in [0, 4, 8] {
        Sketch::decode(ValueType::Int64, &sent(TYPE, id, good())).unwrap();
    }
}

/// Hashes of which many fall into the same registers, and with long runs of zeros.
fn any_hash() -> impl Strategy<Value = u64> {
    (0..40_u64, any::<u64>(), 0..64_u32)
        .prop_map(|(register, rest, zeros)| (register << 46) | (rest >> 18 >> (zeros % 46)))
}

proptest! {
    #[test]
    fn merging_gives_the_same_bytes_whatever_the_order_and_the_grouping(
        groups in prop::collection::vec(prop::collection::vec(any_hash(), 1..20), 1..8),
        dense in prop::option::of(any_hash()),
        turn in any::<prop::sample::Index>(),
    ) {
        let of = |hashes: &[u64]| merged(hashes.iter().map(|h| Sketch::of_one(ValueType::Int64, *h)));
        let mut sketches: Vec<Sketch> = groups.iter().map(|group| of(group)).collect();
        if let Some(hash) = dense {
            let bytes = with_precision(PRECISION, &[hash], true);
            sketches.push(Sketch::decode(ValueType::Int64, &bytes).unwrap());
        }
        let forward = merged(sketches.clone()).encode();
        let by = turn.index(sketches.len());
        sketches.rotate_left(by);
        prop_assert_eq!(&merged(sketches.clone()).encode(), &forward);
        sketches.reverse();
        let (left, right) = sketches.split_at(turn.index(sketches.len()));
        // The way of the engine: parts are combined, written down, and combined again.
        let parts: Vec<Bytes> = [left, right]
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| merged(part.iter().cloned()).encode())
            .collect();
        let mut state = UNIQUE_INT64.begin(&parts[0]).unwrap();
        prop_assert!(parts[1..].iter().all(|part| state.add(part)));
        prop_assert_eq!(state.encode(), forward);
    }

    #[test]
    fn what_is_damaged_is_refused_or_read(
        hashes in prop::collection::vec(any_hash(), 1..200),
        dense in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = with_precision(PRECISION, &hashes, dense);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        if let Ok(sketch) = Sketch::decode(ValueType::Int64, &bytes) {
            let again = Sketch::decode(ValueType::Int64, &sketch.encode()).unwrap();
            prop_assert_eq!(again.encode(), sketch.encode());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn large_sets_turn_dense_in_every_order(seed in any::<u64>(), cut in 1..30_000_usize) {
        // Around the bound: 22,500 random values take about its bytes.
        let hashes: Vec<u64> =
            (0..22_400_u64 + seed % 400).map(|i| fingerprint(&(seed ^ i).to_le_bytes())).collect();
        let of = |hashes: &[u64]| {
            let bytes = with_precision(PRECISION, hashes, false);
            Sketch::decode(ValueType::Int64, &bytes).map(|mut sketch| {
                sketch.num_values = hashes.len() as i64;
                sketch
            })
        };
        let whole = of(&hashes).unwrap();
        let (a, b) = hashes.split_at(cut.min(hashes.len() - 1));
        let (a, b) = (of(a).unwrap(), of(b).unwrap());
        prop_assert_eq!(merged([a.clone(), b.clone()]).encode(), whole.encode());
        prop_assert_eq!(merged([b, a]).encode(), whole.encode());
    }
}
