//! Value types of column families: which the admin API may set, and what an aggregate one makes of its inputs.
//!
//! A type other than an aggregate describes the family's values to those who read them (SQL, clients); the server
//! stores bytes and checks that the description can be followed. An aggregate type changes what is stored, so it is
//! set when the family is created and stays.
//!
//! | aggregate            | `input_type`                                | `AddToCell`, input                | state                       |
//! |----------------------|---------------------------------------------|-----------------------------------|-----------------------------|
//! | `sum`, `min`, `max`  | `Int64`, big-endian                         | `int_value`                       | 8 bytes, big-endian         |
//! | `hllpp_unique_count` | `Int64`, `String`, `Bytes`; or none         | its value; or `raw_value`         | a sketch ([`crate::sketch`]) |

use ::bytes::Bytes;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as Value;
use tepui_engine::schema::Aggregate;

use admin::r#type::aggregate::{self, Aggregator};
use admin::r#type::{Kind, bytes, int64, string, r#struct, timestamp};

use crate::error::{Error, Result};
use crate::limits;
use crate::sketch::{Sketch, UNIQUE_BYTES, UNIQUE_INT64, ValueType, fingerprint};

/// Levels of types within types. Bigtable names no limit; types that people mean have three.
pub const TYPE_DEPTH_MAX: usize = 20;

/// Fields of a struct, at most: as many as BigQuery's structs, to which they are shown, can have.
pub const STRUCT_FIELDS_MAX: usize = 10_000;

/// Bytes of a struct's delimiter, at most: Bigtable's documented limit.
pub const DELIMITER_BYTES_MAX: usize = 50;

/// Bytes of a number, as input, state and cell.
const INT64_BYTES: usize = 8;

/// What is added to the cells of an aggregate family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Whole numbers.
    Int64,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// Bytes of which no type is said.
    Raw,
}

/// How a family aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateType {
    /// What is added.
    pub input: Input,
    /// How it combines.
    pub how: Aggregate,
}

impl AggregateType {
    /// The sum, minimum or maximum of numbers.
    pub const fn of_numbers(how: Aggregate) -> Self {
        Self { input: Input::Int64, how }
    }

    /// The count of distinct values.
    pub fn unique_count(input: Input) -> Self {
        let how = match input {
            Input::Int64 => Aggregate::Opaque(&UNIQUE_INT64),
            Input::String | Input::Bytes | Input::Raw => Aggregate::Opaque(&UNIQUE_BYTES),
        };
        Self { input, how }
    }

    /// The operand that adds `input`.
    pub fn operand(self, input: Option<&Value>) -> Result<Bytes> {
        let what = match (self.input, input) {
            (Input::Int64, Some(Value::IntValue(number))) => return Ok(self.of_number(*number)),
            (Input::String, Some(Value::StringValue(text))) => {
                return Self::of_bytes(text.as_bytes());
            }
            (Input::Bytes, Some(Value::BytesValue(value))) => return Self::of_bytes(value),
            (Input::Raw, Some(Value::RawValue(value))) => return Self::of_bytes(value),
            (Input::Int64, _) => "an int_value",
            (Input::String, _) => "a string_value",
            (Input::Bytes, _) => "a bytes_value",
            (Input::Raw, _) => "a raw_value",
        };
        let what = format!("must be {what}, the input type of the column family");
        Err(Error::field("input", what))
    }

    fn of_number(self, number: i64) -> Bytes {
        match self.how {
            Aggregate::Opaque(_) => {
                Sketch::of_one(ValueType::Int64, fingerprint(&number.to_le_bytes())).encode()
            }
            Aggregate::Sum | Aggregate::Min | Aggregate::Max => {
                Bytes::copy_from_slice(&number.to_be_bytes())
            }
        }
    }

    fn of_bytes(value: &[u8]) -> Result<Bytes> {
        limits::check_value_bytes(value.len())?;
        Ok(Sketch::of_one(ValueType::Bytes, fingerprint(value)).encode())
    }

    /// The operand that merges a state; `None` for NULL, which is allowed and has no effect.
    pub fn merged(self, state: Option<&Value>) -> Result<Option<Bytes>> {
        let bad = |what: String| Error::field("input", what);
        let state = match (state, self.how) {
            (None, _) => return Ok(None),
            (Some(Value::RawValue(state)), _) => state,
            // The state is of a type of the API, so its typed form is as good as the raw bytes.
            (Some(Value::IntValue(state)), Aggregate::Sum | Aggregate::Min | Aggregate::Max) => {
                return Ok(Some(Bytes::copy_from_slice(&state.to_be_bytes())));
            }
            (Some(Value::BytesValue(state)), Aggregate::Opaque(_)) => state,
            (Some(_), _) => {
                let what = "must be a raw_value, the state type of the column family";
                return Err(bad(what.to_owned()));
            }
        };
        match self.how {
            Aggregate::Opaque(_) => {
                let counted = match self.input {
                    Input::Int64 => ValueType::Int64,
                    Input::String | Input::Bytes | Input::Raw => ValueType::Bytes,
                };
                let sketch = Sketch::decode_new(counted, state).map_err(|why| {
                    bad(format!("the state of an HLL++ aggregate is a ZetaSketch, but {why}"))
                })?;
                // One that is smaller as it came stays so: what is kept of a request is bounded by its size.
                let encoded = sketch.encode();
                Ok(Some(if encoded.len() <= state.len() { encoded } else { state.clone() }))
            }
            Aggregate::Sum | Aggregate::Min | Aggregate::Max if state.len() == INT64_BYTES => {
                Ok(Some(state.clone()))
            }
            Aggregate::Sum | Aggregate::Min | Aggregate::Max => Err(bad(format!(
                "the state of an int64 aggregate is {INT64_BYTES} bytes, but got {}",
                state.len()
            ))),
        }
    }

    /// The full type, as the API shows it: the state's type, and the input's as it was `given`, with its encoding filled in where that was left open.
    pub fn to_proto(self, given: Option<&admin::Type>) -> admin::Type {
        let given = given.filter(|given| given.kind.as_ref().is_some_and(says_encoding));
        let input_type = match self.input {
            Input::Int64 => Some(int64_type()),
            Input::String => {
                Some(Kind::StringType(admin::r#type::String { encoding: Some(utf8_bytes()) }))
            }
            Input::Bytes => Some(bytes_type()),
            Input::Raw => None,
        };
        let state_type = match self.how {
            Aggregate::Opaque(_) => bytes_type(),
            Aggregate::Sum | Aggregate::Min | Aggregate::Max => int64_type(),
        };
        let aggregator = match self.how {
            Aggregate::Sum => Aggregator::Sum(aggregate::Sum {}),
            Aggregate::Min => Aggregator::Min(aggregate::Min {}),
            Aggregate::Max => Aggregator::Max(aggregate::Max {}),
            Aggregate::Opaque(_) => {
                Aggregator::HllppUniqueCount(aggregate::HyperLogLogPlusPlusUniqueCount {})
            }
        };
        let typed = |kind| Box::new(admin::Type { kind: Some(kind) });
        let aggregate = admin::r#type::Aggregate {
            input_type: given.cloned().map(Box::new).or_else(|| input_type.map(typed)),
            state_type: Some(typed(state_type)),
            aggregator: Some(aggregator),
        };
        admin::Type { kind: Some(Kind::AggregateType(Box::new(aggregate))) }
    }
}

/// The type of what an aggregate adds, as it was given.
pub fn input_of(value_type: Option<&admin::Type>) -> Option<&admin::Type> {
    match value_type.and_then(|value_type| value_type.kind.as_ref()) {
        Some(Kind::AggregateType(aggregate)) => aggregate.input_type.as_deref(),
        _ => None,
    }
}

/// Whether the type of an input says how it is encoded.
fn says_encoding(kind: &Kind) -> bool {
    match kind {
        Kind::Int64Type(int64) => int64.encoding.as_ref().is_some_and(|e| e.encoding.is_some()),
        Kind::StringType(text) => text.encoding.as_ref().is_some_and(|e| e.encoding.is_some()),
        Kind::BytesType(bytes) => bytes.encoding.as_ref().is_some_and(|e| e.encoding.is_some()),
        _ => false,
    }
}

fn int64_type() -> Kind {
    let big_endian = int64::encoding::Encoding::BigEndianBytes(Default::default());
    let encoding = Some(int64::Encoding { encoding: Some(big_endian) });
    Kind::Int64Type(admin::r#type::Int64 { encoding })
}

fn bytes_type() -> Kind {
    let raw = bytes::encoding::Encoding::Raw(bytes::encoding::Raw {});
    let encoding = Some(bytes::Encoding { encoding: Some(raw) });
    Kind::BytesType(admin::r#type::Bytes { encoding })
}

/// Checks a family's `value_type`, and says how the family aggregates; `None` for one that does not.
///
/// Fails with INVALID_ARGUMENT where the type is incomplete or contradicts itself.
pub fn check(value_type: Option<&admin::Type>) -> Result<Option<AggregateType>> {
    match value_type.and_then(|value_type| value_type.kind.as_ref()) {
        None => Ok(None),
        Some(Kind::AggregateType(aggregate)) => aggregate_type(aggregate).map(Some),
        Some(kind) => check_kind("value_type", kind, TYPE_DEPTH_MAX).map(|()| None),
    }
}

/// How a family aggregates whose type was checked when it was set: what is refused since then stays as it is.
pub fn aggregate_of_checked(value_type: Option<&admin::Type>) -> Result<Option<AggregateType>> {
    match value_type.and_then(|value_type| value_type.kind.as_ref()) {
        Some(Kind::AggregateType(aggregate)) => aggregate_type(aggregate).map(Some),
        _ => Ok(None),
    }
}

/// Replaces what is deprecated in a type, and in those in it, as documented: `utf8_raw` of a String by `utf8_bytes`, and the type of the bytes of
/// a big-endian number by none. The state of
/// an aggregate is the server's to tell ([`AggregateType::to_proto`]), whatever a client says of it.
#[expect(deprecated, reason = "it is what older clients send")]
pub fn modernize(value_type: &mut admin::Type) {
    let replace = |within: Option<&mut admin::Type>| within.map_or((), modernize);
    match &mut value_type.kind {
        Some(Kind::StringType(string)) => {
            if let Some(encoding) = &mut string.encoding
                && matches!(encoding.encoding, Some(string::encoding::Encoding::Utf8Raw(_)))
            {
                *encoding = utf8_bytes();
            }
        }
        Some(Kind::Int64Type(int64)) => {
            if let Some(int64::encoding::Encoding::BigEndianBytes(bytes)) =
                int64.encoding.as_mut().and_then(|encoding| encoding.encoding.as_mut())
            {
                bytes.bytes_type = None;
            }
        }
        Some(Kind::ArrayType(array)) => replace(array.element_type.as_deref_mut()),
        Some(Kind::MapType(map)) => {
            replace(map.key_type.as_deref_mut());
            replace(map.value_type.as_deref_mut());
        }
        Some(Kind::StructType(of)) => modernize_fields(of),
        Some(Kind::AggregateType(of)) => {
            replace(of.input_type.as_deref_mut());
            of.state_type = None;
        }
        _ => {}
    }
}

/// The same for the fields of a struct.
pub fn modernize_fields(of: &mut admin::r#type::Struct) {
    of.fields.iter_mut().filter_map(|field| field.r#type.as_mut()).for_each(modernize);
}

fn utf8_bytes() -> string::Encoding {
    let utf8 = string::encoding::Encoding::Utf8Bytes(string::encoding::Utf8Bytes {});
    string::Encoding { encoding: Some(utf8) }
}

fn aggregate_type(aggregate: &admin::r#type::Aggregate) -> Result<AggregateType> {
    let path = "value_type.aggregate_type";
    let bad = |what: &str| Error::field(path, what);
    let Some(aggregator) = &aggregate.aggregator else {
        return Err(bad("aggregator must be set"));
    };
    let input = aggregate.input_type.as_ref().and_then(|input| input.kind.as_ref());
    if let Some(input) = input {
        check_kind("value_type.aggregate_type.input_type", input, TYPE_DEPTH_MAX)?;
    }
    let how = match aggregator {
        Aggregator::Sum(_) => Aggregate::Sum,
        Aggregator::Min(_) => Aggregate::Min,
        Aggregator::Max(_) => Aggregate::Max,
        Aggregator::HllppUniqueCount(_) => {
            return Ok(AggregateType::unique_count(match input {
                None => Input::Raw,
                Some(Kind::Int64Type(_)) => Input::Int64,
                Some(Kind::StringType(_)) => Input::String,
                Some(Kind::BytesType(_)) => Input::Bytes,
                Some(_) => {
                    return Err(bad(
                        "hllpp_unique_count takes the input_type Int64, String or Bytes, or none for raw values",
                    ));
                }
            }));
        }
    };
    match input {
        None => Err(bad("input_type must be set")),
        Some(Kind::Int64Type(int64)) => {
            let encoding = int64.encoding.as_ref().and_then(|encoding| encoding.encoding.as_ref());
            // Left out, it can only be this one: operands are always sent as numbers.
            if matches!(encoding, None | Some(int64::encoding::Encoding::BigEndianBytes(_))) {
                Ok(AggregateType::of_numbers(how))
            } else {
                Err(bad("sum, min and max take Int64 in the encoding BigEndianBytes alone"))
            }
        }
        Some(_) => Err(bad("sum, min and max take the input_type Int64 alone")),
    }
}

/// Checks a type that is not an aggregate, and those in it.
fn check_kind(path: &str, kind: &Kind, levels_left: usize) -> Result<()> {
    let bad = |what: &str| Error::field(path, what);
    if levels_left == 0 {
        return Err(Error::field(
            "value_type",
            format!("nests deeper than {TYPE_DEPTH_MAX} levels"),
        ));
    }
    let chosen = |is_chosen: bool| {
        if is_chosen { Ok(()) } else { Err(bad("encoding must choose one where it is set")) }
    };
    let inner = |field: &str, inner: Option<&admin::Type>| {
        let path = format!("{path}.{field}");
        match inner.and_then(|inner| inner.kind.as_ref()) {
            Some(kind) => check_kind(&path, kind, levels_left - 1),
            None => Err(Error::field(&path, "must be set")),
        }
    };
    match kind {
        Kind::BytesType(t) => chosen(t.encoding.is_none_or(|e| e.encoding.is_some())),
        Kind::StringType(t) => chosen(t.encoding.is_none_or(|e| e.encoding.is_some())),
        Kind::Int64Type(t) => chosen(t.encoding.is_none_or(|e| e.encoding.is_some())),
        Kind::TimestampType(t) => chosen(t.encoding.is_none_or(|e| match e.encoding {
            Some(timestamp::encoding::Encoding::UnixMicrosInt64(int64)) => int64.encoding.is_some(),
            None => false,
        })),
        Kind::BoolType(_) | Kind::Float32Type(_) | Kind::Float64Type(_) | Kind::DateType(_) => {
            Ok(())
        }
        Kind::ArrayType(t) => {
            let element = t.element_type.as_deref();
            if matches!(element, Some(admin::Type { kind: Some(Kind::ArrayType(_)) })) {
                let what = "the elements of an array must not be arrays themselves";
                return Err(Error::field(&format!("{path}.array_type.element_type"), what));
            }
            inner("array_type.element_type", element)
        }
        Kind::MapType(t) => {
            let key = t.key_type.as_deref();
            inner("map_type.key_type", key)?;
            let is_key = |kind: &Kind| {
                matches!(kind, Kind::BytesType(_) | Kind::StringType(_) | Kind::Int64Type(_))
            };
            if !key.and_then(|key| key.kind.as_ref()).is_some_and(is_key) {
                return Err(bad("the keys of a map are of type Bytes, String or Int64"));
            }
            inner("map_type.value_type", t.value_type.as_deref())
        }
        Kind::StructType(t) => check_struct(path, t, inner),
        Kind::ProtoType(t) => {
            check_name(path, "proto_type.schema_bundle_id", &t.schema_bundle_id)?;
            check_name(path, "proto_type.message_name", &t.message_name)
        }
        Kind::EnumType(t) => {
            check_name(path, "enum_type.schema_bundle_id", &t.schema_bundle_id)?;
            check_name(path, "enum_type.enum_name", &t.enum_name)
        }
        Kind::AggregateType(_) => Err(bad("an aggregate cannot be within another type")),
    }
}

fn check_struct(
    path: &str,
    t: &admin::r#type::Struct,
    inner: impl Fn(&str, Option<&admin::Type>) -> Result<()>,
) -> Result<()> {
    use r#struct::encoding::Encoding;
    let bad = |what: String| Error::field(path, what);
    if t.fields.len() > STRUCT_FIELDS_MAX {
        return Err(bad(format!("a struct has at most {STRUCT_FIELDS_MAX} fields")));
    }
    for (i, field) in t.fields.iter().enumerate() {
        inner(&format!("struct_type.fields[{i}].type"), field.r#type.as_ref())?;
    }
    match t.encoding.as_ref().map(|encoding| encoding.encoding.as_ref()) {
        None | Some(Some(Encoding::OrderedCodeBytes(_))) => Ok(()),
        Some(None) => Err(bad("encoding must choose one where it is set".to_owned())),
        Some(Some(Encoding::Singleton(_))) if t.fields.len() != 1 => {
            Err(bad(format!("singleton encodes one field, not {}", t.fields.len())))
        }
        Some(Some(Encoding::Singleton(_))) => Ok(()),
        Some(Some(Encoding::DelimitedBytes(delimited))) => {
            let bytes = delimited.delimiter.len();
            if (1..=DELIMITER_BYTES_MAX).contains(&bytes) {
                return Ok(());
            }
            Err(bad(format!(
                "delimiter must have 1 to {DELIMITER_BYTES_MAX} bytes, but has {bytes}"
            )))
        }
    }
}

fn check_name(path: &str, field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        Err(Error::field(&format!("{path}.{field}"), "must be set"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[path = "value_type_tests.rs"]
mod tests;
