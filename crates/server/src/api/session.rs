//! What clients ask before they open sessions, a protocol of which the message crates know nothing yet: the parts
//! of `google/bigtable/v2/session.proto` that are answered here. Fields that are left out mean "as before".

use prost::Message;

/// `google.bigtable.v2.GetClientConfigurationRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetClientConfigurationRequest {
    /// The instance that the client will use.
    #[prost(string, tag = "1")]
    pub instance_name: String,
    /// The app profile that it will use.
    #[prost(string, tag = "2")]
    pub app_profile_id: String,
}

/// `google.bigtable.v2.ClientConfiguration`.
#[derive(Clone, PartialEq, Message)]
pub struct ClientConfiguration {
    /// How much of its work a client does by sessions.
    #[prost(message, optional, tag = "2")]
    pub session_configuration: Option<SessionClientConfiguration>,
    /// Whether the client need not ask again; one of a choice.
    #[prost(bool, optional, tag = "3")]
    pub stop_polling: Option<bool>,
}

/// `google.bigtable.v2.SessionClientConfiguration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SessionClientConfiguration {
    /// The share of requests that go by sessions, from 0 to 1.
    #[prost(float, tag = "1")]
    pub session_load: f32,
}

impl ClientConfiguration {
    /// No sessions, now or later.
    pub fn without_sessions() -> Self {
        Self {
            session_configuration: Some(SessionClientConfiguration { session_load: 0.0 }),
            stop_polling: Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_off_on_the_wire() {
        // 12 00: field 2, an empty message, in which the load is 0. 18 01: field 3, true.
        assert_eq!(ClientConfiguration::without_sessions().encode_to_vec(), [0x12, 0, 0x18, 1]);
    }
}
