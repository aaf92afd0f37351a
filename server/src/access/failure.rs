//! Why a request has no known sender.

/// Why a request has no known sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthenticationFailure {
    /// It shows no key.
    Missing,
    /// What it shows is not the text of a key.
    Malformed,
    /// There is no such key, or not any more.
    Unknown,
    /// The key has another secret.
    WrongSecret,
    /// The key has expired.
    Expired,
    /// The core did not accept the key, or that there was none.
    Refused,
}

impl AuthenticationFailure {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Missing, Self::Malformed, Self::Unknown, Self::WrongSecret, Self::Expired, Self::Refused];

    /// The value of the label in metrics.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::WrongSecret => "wrong_secret",
            Self::Expired => "expired",
            Self::Refused => "refused",
        }
    }

    /// The same text for every key that is not accepted: it does not say whether its id exists.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Missing => "a key is needed: send it as Authorization: Bearer dq_...",
            Self::Malformed => "malformed key: want Authorization: Bearer dq_<id>_<secret>",
            Self::Unknown | Self::WrongSecret | Self::Expired | Self::Refused => {
                "the key is unknown, expired or revoked"
            }
        }
    }
}
