//! `driftq effects`: what the idempotency store remembers.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use driftq_client::{BrokerStore, Identity, Scope, Store as _};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Broker;
use crate::failure::{Exit, Failure};
use crate::output::confirm;
use crate::table::{Cell, Table, Tone};
use crate::text::cut;
use crate::units::parse_duration;

/// Records of one request.
const PAGE: u64 = 1_000;
/// Columns of an error in a list.
const TEXT_COLUMNS: usize = 40;

/// What to do with effects.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// Show one effect
    Get {
        #[command(flatten)]
        effect: Named,
    },
    /// List effects
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only those of this kind of scope
        #[arg(long, value_enum)]
        scope: Option<Kind>,
        /// Only those with this status
        #[arg(long, value_enum)]
        status: Option<Status>,
        /// Only those unchanged for so long
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        older_than: Option<Duration>,
        /// At most so many
        #[arg(long, short = 'n', default_value_t = 100)]
        limit: u64,
    },
    /// Forget an effect: it may be run again
    Forget {
        #[command(flatten)]
        effect: Named,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// An effect by its identity.
#[derive(Args, Clone, Debug)]
pub(crate) struct Named {
    /// Key of the effect
    key: String,
    /// Kind of the scope
    #[arg(long, value_enum)]
    scope: Kind,
    /// Tenant [default: `default`]
    #[arg(long)]
    tenant: Option<String>,
    /// Topic of the scope `consume`
    #[arg(long, required_if_eq("scope", "consume"))]
    topic: Option<String>,
    /// Group of the scope `consume`
    #[arg(long, required_if_eq("scope", "consume"))]
    group: Option<String>,
    /// Id of the scopes `job` and `task`
    #[arg(long, required_if_eq_any([("scope", "job"), ("scope", "task")]))]
    id: Option<String>,
    /// Principal of the scope `rpc`
    #[arg(long, required_if_eq("scope", "rpc"))]
    principal: Option<String>,
    /// Method of the scope `rpc`
    #[arg(long, required_if_eq("scope", "rpc"))]
    method: Option<String>,
}

/// The kinds of scopes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Consume,
    Tenant,
    Job,
    Task,
    Rpc,
}

/// How an effect may stand.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    InProgress,
    Succeeded,
    FailedFinal,
    FailedRetryable,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "IN_PROGRESS",
            Self::Succeeded => "SUCCEEDED",
            Self::FailedFinal => "FAILED_FINAL",
            Self::FailedRetryable => "FAILED_RETRYABLE",
        }
    }

    fn tone(text: &str) -> Tone {
        match text {
            "SUCCEEDED" => Tone::Good,
            "IN_PROGRESS" | "FAILED_RETRYABLE" => Tone::Warn,
            _ => Tone::Bad,
        }
    }
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Tenant => "tenant",
            Self::Job => "job",
            Self::Task => "task",
            Self::Rpc => "rpc",
        }
    }
}

impl Named {
    /// The parser requires what each kind needs.
    fn identity(self) -> Identity {
        let text = Option::unwrap_or_default;
        let scope = match self.scope {
            Kind::Consume => Scope::consume(text(self.topic), text(self.group)),
            Kind::Tenant => Scope::Tenant,
            Kind::Job => Scope::job(text(self.id)),
            Kind::Task => Scope::task(text(self.id)),
            Kind::Rpc => Scope::rpc(text(self.principal), text(self.method)),
        };
        Identity::new(scope, self.key).tenant(text(self.tenant))
    }
}

pub(crate) async fn run(broker: &Broker, command: Command) -> Result<(), Failure> {
    let (client, output) = (broker.client()?, broker.output);
    let missing = |identity: &Identity| {
        Failure::new(
            Exit::NotFound,
            format!("effect {:?} in scope {} is not known", identity.key, shown(&identity.scope)),
        )
    };
    match command {
        Command::Get { effect } => {
            let identity = effect.identity();
            let effect = BrokerStore::new(&client).get(&identity).await?.ok_or_else(|| missing(&identity))?;
            output.show(&effect, |output| {
                let status = json!(effect.status).as_str().unwrap_or_default().to_owned();
                let mut text = output.toned(&status, Status::tone(&status)) + "\n";
                let result = effect.result.as_ref().map(|result| result.get().to_owned()).unwrap_or_default();
                let code = if effect.response_code == 0 { String::new() } else { effect.response_code.to_string() };
                for (name, value) in [
                    ("attempt", effect.attempt.to_string()),
                    ("owner", effect.owner.clone()),
                    ("lease until", effect.lease_until.clone().unwrap_or_default()),
                    ("response code", code),
                    ("result", result),
                    ("last error", effect.last_error.clone()),
                    ("request hash", effect.request_hash.clone().unwrap_or_default()),
                    ("updated at", effect.updated_at.clone()),
                    ("expires at", effect.expires_at.clone()),
                ] {
                    if !value.is_empty() {
                        text.push_str(&format!("{name:<14} {}\n", crate::text::visible(&value)));
                    }
                }
                text
            })
        }
        Command::List { tenant, scope, status, older_than, limit } => {
            let older_than = older_than.map(|age| age.as_millis().to_string());
            let filters = [
                ("tenant_id", tenant.as_deref()),
                ("kind", scope.map(Kind::as_str)),
                ("status", status.map(Status::as_str)),
                ("older_than_ms", older_than.as_deref()),
            ];
            let filters: Vec<_> = filters.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
            let records = list(&client, &filters, limit).await?;
            let mut table = Table::new(&["TENANT", "SCOPE", "KEY", "STATUS", ">ATTEMPT", "UPDATED", "LAST ERROR"]);
            for record in &records {
                let text = |name: &str| record[name].as_str().unwrap_or_default();
                let scope = Scope::deserialize(&record["scope"]).map(|scope| shown(&scope)).unwrap_or_default();
                table.row(vec![
                    text("tenant_id").into(),
                    scope.into(),
                    text("key").into(),
                    Cell::toned(text("status"), Status::tone(text("status"))),
                    record["attempt"].to_string().into(),
                    text("updated_at").into(),
                    cut(text("last_error"), TEXT_COLUMNS).into(),
                ]);
            }
            output.table(&records, &table, "no effects")
        }
        Command::Forget { effect, yes } => {
            let identity = effect.identity();
            confirm(&format!("Forget the effect {:?}? It may be run again.", identity.key), yes)?;
            if !BrokerStore::new(&client).forget(&identity).await? {
                return Err(missing(&identity));
            }
            output.show(&json!({"forgotten": identity}), |_| format!("forgot the effect {:?}\n", identity.key))
        }
    }
}

/// Records of as many pages as it takes; a page may be short, or empty before the last.
async fn list(client: &driftq_client::Client, filters: &[(&str, &str)], limit: u64) -> Result<Vec<Value>, Failure> {
    #[derive(Deserialize)]
    struct Page {
        records: Vec<Value>,
        next: Option<String>,
    }
    let (mut records, mut after) = (Vec::new(), None::<String>);
    while (records.len() as u64) < limit {
        let size = PAGE.min(limit - records.len() as u64).to_string();
        let mut parameters = filters.to_vec();
        parameters.push(("limit", &size));
        parameters.extend(after.as_deref().map(|after| ("after", after)));
        let page: Page = client.get("/v1/idempotency/list", &parameters).await?;
        records.extend(page.records);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(records)
}

/// A scope in one column.
fn shown(scope: &Scope) -> String {
    match scope {
        Scope::Consume { topic, group } => format!("consume {topic} {group}"),
        Scope::Tenant => "tenant".to_owned(),
        Scope::Job { id } => format!("job {id}"),
        Scope::Task { id } => format!("task {id}"),
        Scope::Rpc { principal, method } => format!("rpc {principal} {method}"),
        _ => "another".to_owned(),
    }
}
