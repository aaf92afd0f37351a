//! The query string, whose parameters may stand in for a body.

use std::borrow::Cow;
use std::str::FromStr;

use percent_encoding::percent_decode;

use super::error::ApiError;

/// Most parameters of a query; more than any request has.
const PARAMETERS_MAX: usize = 64;

/// The parameters of a query. Unknown ones are ignored.
#[derive(Debug, Default)]
pub(crate) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Parses a query.
    pub(crate) fn parse(query: Option<&'a str>) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        let Some(query) = query else { return Ok(Self { pairs }) };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() == PARAMETERS_MAX {
                return Err(ApiError::invalid(format!("more than {PARAMETERS_MAX} query parameters")));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Self { pairs })
    }

    /// The value of a parameter.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        let mut found = self.pairs.iter().filter(|(known, _)| known == name).map(|(_, value)| &**value);
        match (found.next(), found.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(ApiError::invalid(format!("query parameter {name} is given twice"))),
        }
    }

    /// The value of a parameter that has several names; the first that is not empty.
    pub(crate) fn any_of(&self, names: &[&'static str]) -> Result<Option<&str>, ApiError> {
        for name in names {
            if let Some(value) = self.text(name)?.filter(|value| !value.is_empty()) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The value of a boolean parameter. An empty one counts as absent.
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.text(name)?.map(str::trim) {
            None | Some("") => Ok(None),
            Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err(ApiError::invalid(format!("bad {name}: {other:?}, want true or false"))),
        }
    }

    /// The parsed value of a parameter. An empty one counts as absent.
    pub(crate) fn value<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        match self.text(name)?.map(str::trim).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| ApiError::invalid(format!("bad {name}: {text:?}"))),
        }
    }
}

/// Decodes `+` and percent encoding. `form_urlencoded` replaces invalid UTF-8 without an error; here it must be
/// refused.
fn decode(text: &str) -> Result<Cow<'_, str>, ApiError> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8();
    decoded.map(|text| Cow::Owned(text.into_owned())).map_err(|_| ApiError::invalid("the query is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse(Some("topic=a%20b+c&x=1&value=%C3%A9&&empty=")).expect("well-formed");
        assert_eq!(query.text("topic").expect("once"), Some("a b c"));
        assert_eq!(query.text("value").expect("once"), Some("é"));
        assert_eq!(query.value::<u32>("empty").expect("empty"), None);
        assert_eq!(query.text("absent").expect("absent"), None);
    }

    #[test]
    fn ambiguous_or_invalid_parameter_is_refused() {
        assert!(Query::parse(Some("value=%FF")).is_err(), "not UTF-8");
        let twice = Query::parse(Some("topic=a&topic=b")).expect("well-formed");
        assert!(twice.text("topic").is_err());
        let number = Query::parse(Some("partition=1x")).expect("well-formed");
        assert!(number.value::<u32>("partition").is_err());
        assert!(Query::parse(Some(&"a=1&".repeat(65))).is_err());
    }
}
