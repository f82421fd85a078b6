//! Sketches that count distinct values: HyperLogLog++ in the format of Google's ZetaSketch, which BigQuery's
//! `HLL_COUNT` functions read and write.
//!
//! ```text
//! AggregatorStateProto { type: 112, num_values, encoding_version: 2, value_type,
//!   112: { sparse_size, precision, sparse_precision, data or sparse_data } }
//!
//! sparse_data   sparse values, ascending, each as a varint of its distance from the one before    (few values)
//! data          one byte of ρ for each of the 2^precision registers                                (many)
//! ```
//!
//! All sketches are read in the one [`PRECISION`], so that merging is a union of sets of sparse values or a
//! maximum of registers: the result has the same bytes whatever the order. A sketch of another precision is lowered
//! when it is read, which is when it arrives, unless it takes less as it is: then it is kept so. Which of the two forms a sketch has depends on nothing but what it has seen
//! ([`Sketch::is_large`]), and on whether a client sent a sketch that was dense already.

mod encoding;
mod fingerprint;

use bytes::Bytes;
use prost::Message;
use tepui_engine::schema::{Combine, Combined};

use encoding::{Precision, Sparse};
pub use fingerprint::fingerprint;

/// The precision in which every sketch is read, and written where it was combined: what BigQuery and ZetaSketch use where nobody says otherwise. 32 KiB
/// at most for an error of 0.6 %.
const PRECISION: Precision = Precision { normal: 15, sparse: 20 };

/// Bytes of sparse values beyond which registers are kept: three quarters of theirs, as ZetaSketch has it.
const SPARSE_BYTES_MAX: usize = PRECISION.registers() / 4 * 3;

/// Sparse values that are kept in no order while a sketch is read, whatever its size: enough that most are ordered once, and a hundred
/// kilobytes or two.
const UNORDERED_MAX: usize = 2 * SPARSE_BYTES_MAX;

/// `AggregatorType.HYPERLOGLOG_PLUS_UNIQUE`.
const TYPE: i32 = 112;

/// The version of the encoding that is written, and the only one that is read.
const ENCODING_VERSION: i32 = 2;

/// Bytes of a sketch that a client sends, at most: the registers of the greatest precision, and some for what stands around them, of which
/// ZetaSketch writes 30. Longer ones would be copied before it shows what is wrong with them.
const NEW_BYTES_MAX: usize = (1 << Precision::NORMAL_MAX) + 1_024;

/// Sparse values that are inserted one by one; more are merged in one pass.
const INSERTED_ONE_BY_ONE_MAX: usize = 4;

#[derive(Clone, PartialEq, Message)]
struct AggregatorState {
    #[prost(int32, optional, tag = "1")]
    kind: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    num_values: Option<i64>,
    #[prost(int32, optional, tag = "3")]
    encoding_version: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    value_type: Option<i32>,
    #[prost(message, optional, tag = "112")]
    unique: Option<UniqueState>,
}

#[derive(Clone, PartialEq, Message)]
struct UniqueState {
    #[prost(int32, tag = "2")]
    sparse_size: i32,
    #[prost(int32, tag = "3")]
    precision: i32,
    #[prost(int32, tag = "4")]
    sparse_precision: i32,
    #[prost(bytes = "vec", optional, tag = "5")]
    data: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "6")]
    sparse_data: Option<Vec<u8>>,
}

/// What a sketch counts. Sketches of different types do not merge: the same value would count twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// 64-bit integers.
    Int64,
    /// Bytes, or text in UTF-8.
    Bytes,
}

impl ValueType {
    /// `DefaultOpsType.Id`, as it is written.
    const fn id(self) -> i32 {
        match self {
            Self::Int64 => 8,
            Self::Bytes => 11,
        }
    }

    /// Whether a sketch with this id counts such values. Signed and unsigned integers are hashed alike, and a sketch
    /// of nothing may not know its type.
    fn suits(self, id: i32) -> bool {
        const SIGNED_INT64: i32 = 4;
        id == 0 || id == self.id() || (self == Self::Int64 && id == SIGNED_INT64)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Registers {
    /// Sparse values in [`PRECISION`], ascending, one of each key.
    Sparse(Vec<u32>),
    /// ρ by register.
    Dense(Vec<u8>),
}

impl Registers {
    /// Takes in a sparse value of another precision. What is sparse is in no order then, and may have a key several times.
    fn take(&mut self, from: Precision, value: Sparse) {
        if let Self::Sparse(values) = self {
            if from.sparse < PRECISION.sparse {
                // Less is known of each value than a sparse sketch has to say; a register says less still.
                *self = registers_of(values);
            } else {
                values.push(PRECISION.lower(from, value));
                if values.len() > UNORDERED_MAX {
                    put_in_order(values);
                    if values.len() > SPARSE_BYTES_MAX {
                        *self = registers_of(values);
                    }
                }
                return;
            }
        }
        if let Self::Dense(registers) = self {
            let (register, rho) = from.register(value);
            raise(registers, PRECISION.lower_register(from, register, rho));
        }
    }
}

/// Orders sparse values, and leaves one of each key.
fn put_in_order(values: &mut Vec<u32>) {
    values.sort_unstable();
    values.dedup_by(|later, kept| {
        let is_same = PRECISION.key(*later) == PRECISION.key(*kept);
        if is_same {
            // The later one has the greater ρ.
            *kept = *later;
        }
        is_same
    });
}

/// A sketch.
#[derive(Debug, Clone, PartialEq)]
pub struct Sketch {
    value_type: ValueType,
    /// Values that were added, repeated ones too; wraps.
    num_values: i64,
    registers: Registers,
}

impl Sketch {
    /// A sketch of one value, given by its [`fingerprint`].
    pub fn of_one(value_type: ValueType, hash: u64) -> Self {
        let registers = Registers::Sparse(vec![PRECISION.value(hash)]);
        Self { value_type, num_values: 1, registers }
    }

    /// The same as [`Self::decode`] of a sketch that a client sends. One whose sparse values know less than those of [`PRECISION`] would have to be made
    /// dense at once, of a few bytes 32 KiB, and as often as it is read: it is refused. ZetaSketch makes them so only where it is told to: of
    /// its own accord, and in BigQuery, a sketch has five bits more in its sparse values than in its registers, 20 at least with the precisions that are read here.
    /// Those that were taken before are read as they were.
    pub fn decode_new(value_type: ValueType, bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > NEW_BYTES_MAX {
            return Err(format!("it has {} bytes; limit {NEW_BYTES_MAX}", bytes.len()));
        }
        Self::read(value_type, bytes, |unique| {
            let sparse = unique.sparse_precision;
            let is_dense = unique.data.as_ref().is_some_and(|data| !data.is_empty());
            let is_empty = unique.sparse_data.as_ref().is_none_or(Vec::is_empty);
            if is_dense || is_empty || sparse == 0 || sparse >= PRECISION.sparse as i32 {
                return Ok(());
            }
            Err(format!(
                "its sparse_precision is {sparse}; make it with {} or more, which can be lowered",
                PRECISION.sparse
            ))
        })
    }

    /// Reads a sketch and lowers it to [`PRECISION`]; the error says what is wrong with it.
    pub fn decode(value_type: ValueType, bytes: &[u8]) -> Result<Self, String> {
        Self::read(value_type, bytes, |_| Ok(()))
    }

    fn read(
        value_type: ValueType,
        bytes: &[u8],
        check: impl FnOnce(&UniqueState) -> Result<(), String>,
    ) -> Result<Self, String> {
        let state = AggregatorState::decode(bytes).map_err(|_| "it is no sketch".to_owned())?;
        if state.kind != Some(TYPE) {
            return Err(format!("its type is {:?}, not {TYPE}", state.kind.unwrap_or_default()));
        }
        if state.encoding_version != Some(ENCODING_VERSION) {
            return Err(format!("its encoding_version is not {ENCODING_VERSION}"));
        }
        let counted = state.value_type.unwrap_or_default();
        if !value_type.suits(counted) {
            return Err(format!("it counts values of type {counted}, not {}", value_type.id()));
        }
        let unique = state.unique.unwrap_or_default();
        let from = precision_of(&unique)?;
        check(&unique)?;
        let num_values = state.num_values.unwrap_or_default();
        let mut sketch = Self { value_type, num_values, registers: Registers::Sparse(Vec::new()) };
        match (&unique.data, &unique.sparse_data) {
            (Some(data), _) if !data.is_empty() => sketch.registers = dense(from, data)?,
            (_, Some(sparse)) => sketch.take_sparse(from, unique.sparse_precision != 0, sparse)?,
            _ => {}
        }
        Ok(sketch)
    }

    fn take_sparse(
        &mut self,
        from: Precision,
        is_allowed: bool,
        data: &[u8],
    ) -> Result<(), String> {
        if !is_allowed && !data.is_empty() {
            return Err("it has sparse_data and no sparse_precision".to_owned());
        }
        if data.len() > from.registers() {
            return Err(format!("its sparse_data has {} bytes; at most 2^precision", data.len()));
        }
        let mut rest = data;
        let mut value = 0_u32;
        while !rest.is_empty() {
            let distance = prost::encoding::decode_varint(&mut rest).ok();
            let next =
                distance.and_then(|d| u32::try_from(d).ok()).and_then(|d| value.checked_add(d));
            let parsed = next.and_then(|next| Some((next, from.parse(next)?)));
            let (next, parsed) = parsed.ok_or("its sparse_data is damaged")?;
            value = next;
            self.registers.take(from, parsed);
        }
        if let Registers::Sparse(values) = &mut self.registers {
            put_in_order(values);
        }
        Ok(())
    }

    /// Adds what another sketch has seen.
    pub fn merge(&mut self, other: &Self) {
        self.num_values = self.num_values.wrapping_add(other.num_values);
        match (&mut self.registers, &other.registers) {
            (Registers::Dense(registers), Registers::Dense(others)) => {
                for (register, other) in registers.iter_mut().zip(others) {
                    *register = (*register).max(*other);
                }
            }
            (Registers::Dense(registers), Registers::Sparse(values)) => {
                raise_all(registers, values);
            }
            (Registers::Sparse(values), Registers::Dense(others)) => {
                let mut registers = others.clone();
                raise_all(&mut registers, values);
                self.registers = Registers::Dense(registers);
            }
            (Registers::Sparse(values), Registers::Sparse(others)) => {
                if others.len() <= INSERTED_ONE_BY_ONE_MAX {
                    for other in others {
                        insert(values, *other);
                    }
                } else {
                    *values = union(values, others);
                }
                // Each takes a byte at least: beyond this it is large whatever else comes, and memory has a bound.
                if values.len() > SPARSE_BYTES_MAX {
                    self.registers = registers_of(values);
                }
            }
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut unique = UniqueState {
            precision: PRECISION.normal as i32,
            sparse_precision: PRECISION.sparse as i32,
            ..UniqueState::default()
        };
        match &self.registers {
            Registers::Sparse(values) if !Self::is_large(values) => {
                unique.sparse_size = values.len() as i32;
                unique.sparse_data = Some(distances(values.iter().copied()));
            }
            Registers::Sparse(values) => {
                let Registers::Dense(registers) = registers_of(values) else { return Bytes::new() };
                unique.data = Some(registers);
            }
            Registers::Dense(registers) => unique.data = Some(registers.clone()),
        }
        let state = AggregatorState {
            kind: Some(TYPE),
            num_values: Some(self.num_values),
            encoding_version: Some(ENCODING_VERSION),
            value_type: Some(self.value_type.id()),
            unique: Some(unique),
        };
        state.encode_to_vec().into()
    }

    /// Whether registers take less. Measured by keys, without ρ: so measured, a set of values never gets smaller as
    /// values are added, and what is large in one order of merging is large in all.
    fn is_large(values: &[u32]) -> bool {
        let keys = values.iter().map(|value| PRECISION.key(*value));
        values.len() > SPARSE_BYTES_MAX || distances(keys).len() > SPARSE_BYTES_MAX
    }
}

/// The precision of a sketch that was read, where it can be lowered to [`PRECISION`].
fn precision_of(unique: &UniqueState) -> Result<Precision, String> {
    let normal = u32::try_from(unique.precision).unwrap_or(0);
    let sparse = u32::try_from(unique.sparse_precision).unwrap_or(u32::MAX);
    if !(Precision::NORMAL_MIN..=Precision::NORMAL_MAX).contains(&normal) {
        return Err(format!("its precision is {}, which no sketch has", unique.precision));
    }
    if sparse != 0 && !(normal..=Precision::SPARSE_MAX).contains(&sparse) {
        let given = unique.sparse_precision;
        return Err(format!("its sparse_precision is {given}, which no sketch has"));
    }
    if normal < PRECISION.normal {
        return Err(format!(
            "its precision is {normal}; make it with {} or more, which can be lowered",
            PRECISION.normal
        ));
    }
    // Without sparse values, any will do that is not less.
    Ok(Precision { normal, sparse: if sparse == 0 { normal } else { sparse } })
}

/// Registers of another precision in this one.
fn dense(from: Precision, data: &[u8]) -> Result<Registers, String> {
    if data.len() != from.registers() {
        return Err(format!("its data has {} bytes, not {}", data.len(), from.registers()));
    }
    if data.iter().any(|rho| *rho > from.rho_max()) {
        return Err("its data is damaged".to_owned());
    }
    let mut registers = vec![0; PRECISION.registers()];
    for (register, rho) in data.iter().enumerate().filter(|(_, rho)| **rho > 0) {
        raise(&mut registers, PRECISION.lower_register(from, register, *rho));
    }
    Ok(Registers::Dense(registers))
}

fn raise(registers: &mut [u8], (register, rho): (usize, u8)) {
    if let Some(register) = registers.get_mut(register) {
        *register = rho.max(*register);
    }
}

fn raise_all(registers: &mut [u8], values: &[u32]) {
    let parsed = values.iter().filter_map(|value| PRECISION.parse(*value));
    parsed.for_each(|value: Sparse| raise(registers, PRECISION.register(value)));
}

fn registers_of(values: &[u32]) -> Registers {
    let mut registers = vec![0; PRECISION.registers()];
    raise_all(&mut registers, values);
    Registers::Dense(registers)
}

fn insert(values: &mut Vec<u32>, value: u32) {
    let key = PRECISION.key(value);
    match values.binary_search_by_key(&key, |value| PRECISION.key(*value)) {
        Ok(at) => {
            if let Some(kept) = values.get_mut(at) {
                *kept = value.max(*kept);
            }
        }
        Err(at) => values.insert(at, value),
    }
}

/// Both, ascending; of two of the same key, the greater ρ.
fn union(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (None, None) => return out,
            (Some(x), Some(y)) if PRECISION.key(*x) == PRECISION.key(*y) => a.next().max(b.next()),
            (Some(x), Some(y)) if x < y => a.next(),
            (Some(_), None) => a.next(),
            _ => b.next(),
        };
        out.extend(next);
    }
}

/// Ascending numbers as varints of their distances.
fn distances(values: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for value in values {
        prost::encoding::encode_varint(u64::from(value - before), &mut out);
        before = value;
    }
    out
}

/// Sketches as the engine combines them.
#[derive(Debug)]
pub struct UniqueCount(ValueType);

/// Sketches of integers.
pub static UNIQUE_INT64: UniqueCount = UniqueCount(ValueType::Int64);

/// Sketches of bytes and of text.
pub static UNIQUE_BYTES: UniqueCount = UniqueCount(ValueType::Bytes);

impl Combine for UniqueCount {
    fn name(&self) -> &'static str {
        match self.0 {
            ValueType::Int64 => "hllpp_unique_count of int64",
            ValueType::Bytes => "hllpp_unique_count of bytes",
        }
    }

    fn begin(&self, operand: &[u8]) -> Option<Box<dyn Combined>> {
        Some(Box::new(Sketch::decode(self.0, operand).ok()?))
    }
}

impl Combined for Sketch {
    fn add(&mut self, operand: &[u8]) -> bool {
        let other = Self::decode(self.value_type, operand);
        other.as_ref().is_ok_and(|other| {
            self.merge(other);
            true
        })
    }

    fn encode(&self) -> Bytes {
        Self::encode(self)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod zetasketch_tests;
