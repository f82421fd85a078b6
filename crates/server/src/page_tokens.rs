//! Page tokens that are messages: their bytes in hexadecimal, since a token is a text.

use prost::Message;

/// The token that holds this.
pub fn encode(place: &impl Message) -> String {
    hex(&place.encode_to_vec())
}

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xF]);
    digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}

/// What a token of up to so many characters holds; `None` for what is no token.
pub fn decode<M: Message + Default>(token: &str, chars_max: usize) -> Option<M> {
    if token.len() > chars_max || !token.len().is_multiple_of(2) {
        return None;
    }
    let digits = token.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> =
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    M::decode(bytes?.as_slice()).ok()
}
