//! The query string, where it stands for a body.

use std::borrow::Cow;
use std::str::FromStr;

use percent_encoding::percent_decode;

use super::error::ApiError;

/// How many parameters one query may have. More than any request here knows.
const PARAMETERS_MAX: usize = 64;

/// A query's parameters. Those nobody asks for are ignored.
#[derive(Debug, Default)]
pub(crate) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Takes a query apart.
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

    /// The parameter's text, if it was given.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        let mut found = self.pairs.iter().filter(|(known, _)| known == name).map(|(_, value)| &**value);
        match (found.next(), found.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(ApiError::invalid(format!("query parameter {name} is given twice"))),
        }
    }

    /// The parameter's text under any of its names; the first one that is not empty wins.
    pub(crate) fn any(&self, names: &[&'static str]) -> Result<Option<&str>, ApiError> {
        for name in names {
            if let Some(value) = self.text(name)?.filter(|value| !value.is_empty()) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The parameter as true or false. An empty one counts as not given.
    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.text(name)?.map(str::trim) {
            None | Some("") => Ok(None),
            Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err(ApiError::invalid(format!("bad {name}: {other:?}, want true or false"))),
        }
    }

    /// The parameter as a number, or whatever else it is to be. An empty one counts as not given.
    pub(crate) fn value<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        match self.text(name)?.map(str::trim).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| ApiError::invalid(format!("bad {name}: {text:?}"))),
        }
    }
}

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
    fn parameters_are_decoded_and_unknown_ones_ignored() {
        let query = Query::parse(Some("topic=a%20b+c&x=1&value=%C3%A9&&empty=")).expect("well-formed");
        assert_eq!(query.text("topic").expect("once"), Some("a b c"));
        assert_eq!(query.text("value").expect("once"), Some("é"));
        assert_eq!(query.value::<u32>("empty").expect("empty"), None);
        assert_eq!(query.text("absent").expect("absent"), None);
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        assert!(Query::parse(Some("value=%FF")).is_err(), "not UTF-8");
        let twice = Query::parse(Some("topic=a&topic=b")).expect("well-formed");
        assert!(twice.text("topic").is_err());
        let number = Query::parse(Some("partition=1x")).expect("well-formed");
        assert!(number.value::<u32>("partition").is_err());
        assert!(Query::parse(Some(&"a=1&".repeat(65))).is_err());
    }
}
