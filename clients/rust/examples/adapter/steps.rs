//! A handler made of the steps of a scenario.

use std::time::Duration;

use driftq_client::{Context, HandlerError, Message, Outputs, Permanent, Produce, Retry};
use serde_json::{Value, json};

use crate::ledger::Ledger;
use crate::operations::produce_of;

/// Does the steps for one message.
pub(crate) async fn run(
    steps: &[Value],
    ledger: &Ledger,
    message: &Message,
    context: &Context,
) -> Result<Outputs, HandlerError> {
    let mut result = json!({"done": key_of(message)});
    let mut outputs: Vec<Produce> = Vec::new();
    for step in steps {
        let step = filled(step, message);
        let text = |field: &str| step[field].as_str().unwrap_or_default().to_owned();
        match step["do"].as_str().unwrap_or_default() {
            "effect" => {
                ledger.effect(&text("name"), message).await?;
            }
            "side_effect" => {
                let name = text("name");
                let effect = || async {
                    tokio::time::sleep(millis(&step)).await;
                    ledger.effect(&name, message).await
                };
                let _: Value = context.side_effect(&name, &step["args"], effect).await?;
            }
            "sleep" => tokio::time::sleep(millis(&step)).await,
            // A future is cancelled by not polling it again; only one that does not return ignores that.
            "block" | "stubborn" => std::thread::sleep(millis(&step)),
            "fail" => fail(&step, message)?,
            "not_json" => return Ok(Outputs::new().result(&f64::NAN)),
            "return" => result = step["value"].clone(),
            "outputs" => {
                let messages = step["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
                outputs = messages.iter().map(produce_of).collect::<Result<_, _>>()?;
            }
            // As a crash does: without an end of anything.
            "exit" => std::process::exit(70),
            other => return Err(Permanent::new(format!("unknown step {other:?}")).into()),
        }
    }
    Ok(Outputs::new().result(&result).messages(outputs))
}

fn millis(step: &Value) -> Duration {
    Duration::from_millis(step["ms"].as_u64().unwrap_or(0))
}

fn fail(step: &Value, message: &Message) -> Result<(), HandlerError> {
    let attempts = step["attempts"].as_u64();
    if attempts.is_some_and(|attempts| u64::from(message.attempts) > attempts) {
        return Ok(());
    }
    let text = step["text"].as_str().unwrap_or("failed");
    match step["kind"].as_str() {
        Some("retry") => {
            let retry = Retry::new(text);
            let delay = step["delay_ms"].as_u64().map(Duration::from_millis);
            Err(delay.map_or(retry.clone(), |delay| retry.after(delay)).into())
        }
        Some("permanent") => Err(Permanent::new(text).into()),
        _ => panic!("{text}"),
    }
}

fn key_of(message: &Message) -> String {
    let key = &message.envelope.idempotency_key;
    if key.is_empty() { message.id().to_string() } else { key.clone() }
}

/// A step with the texts of this delivery in the place of `{message}`, `{key}` and `{attempt}`.
fn filled(value: &Value, message: &Message) -> Value {
    match value {
        Value::String(text) => text
            .replace("{message}", &message.id().to_string())
            .replace("{key}", &key_of(message))
            .replace("{attempt}", &message.attempts.to_string())
            .into(),
        Value::Array(items) => items.iter().map(|item| filled(item, message)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), filled(value, message)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}
