//! The store.

use std::array;
use std::fmt;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use driftq_client::{
    Begin, Begun, Effect, EffectStatus, Ended, Error, ErrorKind, Finish, Grant, Identity, Store, StoreFuture,
};
use serde_json::value::RawValue;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Config, NoTls, Row, Transaction};

use crate::columns::{
    IdentityColumns, check_text, delivery_columns, identity_in, millis, on_expired_text, protocol, status_of,
    status_text,
};
use crate::failure::{error_of, pool_error_of};
use crate::migrations::migrate;
use crate::retry::{random, repeated};

/// How many connections a pool made by [`PostgresStore::connect`] has at most.
const POOL_SIZE_MAX: usize = 10;
/// How long one try takes at most, by default.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a call is repeated, by default.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// Grants a new effect, as [`BEGIN`] does; no row for any other.
const BEGIN_NEW: &str = include_str!("../../python/src/driftq/postgres/statements/begin.sql");
const BEGIN: &str = "SELECT * FROM driftq.begin_effect($1, $2, $3, $4, $5, p_owner => $6, p_lease_ms => $7, \
    p_ttl_ms => $8, p_keep_until => $9::text::timestamptz, p_request_hash => $10, p_on_expired => $11, \
    p_delivery_partition => $12, p_delivery_offset => $13, p_delivery_token => $14, p_nonce => $15)";
/// Ends the newest grant of an effect, as [`FINISH`] does; no row for any other.
const FINISH_NEWEST: &str = include_str!("../../python/src/driftq/postgres/statements/finish.sql");
const FINISH: &str = "SELECT driftq.finish_effect($1, $2, $3, $4, $5, p_lease_token => $6, p_status => $7, \
    p_result => $8, p_response_code => $9, p_last_error => $10, p_is_first => $11)";
const REACQUIRE: &str =
    "SELECT * FROM driftq.reacquire_effect($1, $2, $3, $4, $5, p_owner => $6, p_lease_ms => $7, p_nonce => $8)";
const RENEW: &str = "SELECT driftq.renew_effect($1, $2, $3, $4, $5, p_lease_token => $6, p_lease_ms => $7)";
const GET: &str = "SELECT * FROM driftq.get_effect($1, $2, $3, $4, $5)";
const FORGET: &str = "SELECT driftq.forget_effect($1, $2, $3, $4, $5)";
const LIST: &str = "SELECT * FROM driftq.list_effects(p_tenant => $1, p_scope_kind => $2, p_status => $3, \
    p_older_than_ms => $4, p_limit => $5, p_after => $6)";

type Parameters<'a> = [&'a (dyn ToSql + Sync)];
/// A statement with its parameters.
type Query<'a> = (&'a str, &'a Parameters<'a>);

/// Effects in a table of your own database.
///
/// A call that fails because the connection or the server did is repeated for a minute; one whose answer was lost gets
/// the same answer again. A single try takes at most 30 s.
#[derive(Clone)]
pub struct PostgresStore {
    pool: Pool,
    timeout: Duration,
    retry_for: Duration,
}

impl fmt::Debug for PostgresStore {
    /// Without the settings of the pool, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("retry_for", &self.retry_for).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// A store over connections of your own pool.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, timeout: TIMEOUT, retry_for: RETRY_FOR }
    }

    /// A store with a pool of its own, without TLS. Connects when it is first used.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] if `config` is not that of a connection.
    pub fn connect(config: &str) -> Result<Self, Error> {
        let misuse = |message: String| Error::new(ErrorKind::Misuse, message);
        let config: Config = config.parse().map_err(|error| misuse(format!("the settings of PostgreSQL: {error}")))?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config, NoTls, recycling);
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE_MAX)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| misuse(format!("the pool of the store: {error}")))?;
        Ok(Self::new(pool))
    }

    /// The same; a single try takes at most so long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same; a call is repeated for so long.
    #[must_use]
    pub fn retry_for(mut self, retry_for: Duration) -> Self {
        self.retry_for = retry_for;
        self
    }

    /// The connections of the store, for transactions that share [`finish_in`](Self::finish_in).
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Brings the schema of the database up to date; returns the numbers of the migrations it lacked.
    ///
    /// # Errors
    /// As [`migrate`].
    pub async fn migrate(&self) -> Result<Vec<i32>, Error> {
        let mut connection = self.pool.get().await.map_err(|error| pool_error_of(&error))?;
        migrate(&mut connection).await
    }

    /// Records the outcome as a part of `transaction`: it is committed with what else the transaction writes, or not at
    /// all. Nothing is repeated.
    ///
    /// After a refusal the transaction can only roll back: a worker that has lost its effect cannot commit.
    ///
    /// # Errors
    /// As [`Store::finish`]; and the same outcome again is an [`ErrorKind::Conflict`], so that a transaction whose
    /// commit was not answered may be repeated, and fails if it was committed.
    pub async fn finish_in(&self, transaction: &Transaction<'_>, finish: &Finish) -> Result<(), Error> {
        let columns = FinishColumns::of(finish, true)?;
        // In one round trip: a transaction may be the only one of its connection, and nothing of it is kept prepared.
        let ended = transaction.query_typed(FINISH_NEWEST, &columns.typed_parameters()).await;
        if ended.map_err(|error| error_of(&error))?.is_empty() {
            transaction.execute(FINISH, &columns.parameters()).await.map_err(|error| error_of(&error))?;
        }
        Ok(())
    }

    /// A page of effects. A retry worker lists those that are `FailedRetryable` or `InProgress`, and reacquires them.
    ///
    /// # Errors
    /// That of the database.
    pub async fn list(&self, list: &List) -> Result<Page, Error> {
        let status = list.status.map(status_text);
        let (older_than, limit) = (millis(list.older_than), i32::try_from(list.limit).unwrap_or(i32::MAX));
        let parameters: &Parameters<'_> =
            &[&list.tenant, &list.scope_kind, &status, &older_than, &limit, &list.after.as_deref()];
        let rows = self.call(LIST, parameters).await?;
        let effects = rows.iter().map(stored_effect).collect::<Result<Vec<_>, _>>()?;
        let is_full = rows.len() == usize::try_from(list.limit).unwrap_or(usize::MAX);
        let next = rows.last().filter(|_| is_full).map(identity_parts).transpose()?;
        Ok(Page { effects, next: next.map(Vec::from) })
    }

    async fn begin_now(&self, begin: &Begin) -> Result<Begun, Error> {
        let of = IdentityColumns::of(&begin.identity)?;
        let (partition, offset, token) = delivery_columns(begin.delivery.as_ref())?;
        let (lease, ttl) = (millis(begin.lease), begin.ttl.map(millis));
        let on_expired = begin.on_expired.map(on_expired_text);
        check_text(&begin.owner)?;
        check_text(begin.request_hash.as_deref().unwrap_or_default())?;
        let parameters: &Parameters<'_> = &[
            &of.tenant,
            &of.kind,
            &of.id,
            &of.detail,
            &of.key,
            &begin.owner,
            &lease,
            &ttl,
            &None::<&str>,
            &begin.request_hash,
            &on_expired,
            &partition,
            &offset,
            &token,
            &nonce(),
        ];
        begun(&single(self.answer(Some((BEGIN_NEW, parameters)), (BEGIN, parameters)).await?)?)
    }

    async fn finish_now(&self, finish: &Finish) -> Result<(), Error> {
        let columns = FinishColumns::of(finish, false)?;
        let parameters = columns.parameters();
        let newest = (FINISH_NEWEST, &parameters[..FINISH_NEWEST_PARAMETERS]);
        self.answer(Some(newest), (FINISH, &parameters)).await.and_then(single).map(|_| ())
    }

    async fn reacquire_now(&self, identity: &Identity, owner: &str, lease: Duration) -> Result<Grant, Error> {
        let of = IdentityColumns::of(identity)?;
        check_text(owner)?;
        let parameters: &Parameters<'_> =
            &[&of.tenant, &of.kind, &of.id, &of.detail, &of.key, &owner, &millis(lease), &nonce()];
        let row = self.one(REACQUIRE, parameters).await?;
        Ok(Grant::new(attempt(&row)?, column::<String>(&row, "lease_token")?))
    }

    async fn renew_now(&self, identity: &Identity, token: &str, lease: Duration) -> Result<(), Error> {
        let of = IdentityColumns::of(identity)?;
        check_text(token)?;
        let parameters: &Parameters<'_> = &[&of.tenant, &of.kind, &of.id, &of.detail, &of.key, &token, &millis(lease)];
        self.one(RENEW, parameters).await.map(|_| ())
    }

    async fn get_now(&self, identity: &Identity) -> Result<Option<Effect>, Error> {
        let of = IdentityColumns::of(identity)?;
        let rows = self.call(GET, &[&of.tenant, &of.kind, &of.id, &of.detail, &of.key]).await?;
        rows.first().map(effect).transpose()
    }

    async fn forget_now(&self, identity: &Identity) -> Result<bool, Error> {
        let of = IdentityColumns::of(identity)?;
        let row = self.one(FORGET, &[&of.tenant, &of.kind, &of.id, &of.detail, &of.key]).await?;
        Ok(row.get(0))
    }

    /// Calls a function that returns one row.
    pub(crate) async fn one(&self, statement: &str, parameters: &Parameters<'_>) -> Result<Row, Error> {
        single(self.call(statement, parameters).await?)
    }

    /// Calls a function.
    async fn call(&self, statement: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>, Error> {
        self.answer(None, (statement, parameters)).await
    }

    /// Calls a function, unless a statement for what is ordinary, if there is one, returns a row. Each is a transaction
    /// of its own. Both again where the server or the connection has failed.
    async fn answer(&self, ordinary: Option<Query<'_>>, function: Query<'_>) -> Result<Vec<Row>, Error> {
        repeated(self.retry_for, || async {
            let connection = tokio::time::timeout(self.timeout, self.pool.get())
                .await
                .map_err(|_| Error::new(ErrorKind::Unavailable, "no connection to PostgreSQL in time"))?
                .map_err(|error| pool_error_of(&error))?;
            let answered = tokio::time::timeout(self.timeout, answer_on(&connection, ordinary, function)).await;
            answered.unwrap_or_else(|_| {
                // Its answer may still come: nothing else waits behind it.
                drop(Object::take(connection));
                Err(Error::new(ErrorKind::Unknown, "PostgreSQL did not answer in time").with_repeatable(true))
            })
        })
        .await
    }
}

async fn answer_on(connection: &Object, ordinary: Option<Query<'_>>, function: Query<'_>) -> Result<Vec<Row>, Error> {
    if let Some(ordinary) = ordinary {
        let rows = query(connection, ordinary).await?;
        if !rows.is_empty() {
            return Ok(rows);
        }
    }
    query(connection, function).await
}

async fn query(connection: &Object, (statement, parameters): Query<'_>) -> Result<Vec<Row>, Error> {
    let prepared = connection.prepare_cached(statement).await.map_err(|error| error_of(&error))?;
    connection.query(&prepared, parameters).await.map_err(|error| error_of(&error))
}

fn single(mut rows: Vec<Row>) -> Result<Row, Error> {
    match (rows.pop(), rows.is_empty()) {
        (Some(row), true) => Ok(row),
        _ => Err(protocol("a function of the store did not return one row")),
    }
}

/// Those of [`FINISH`] but the last.
const FINISH_NEWEST_PARAMETERS: usize = 10;
/// The only parameter of [`FINISH_NEWEST`] that is no text.
const RESPONSE_CODE: usize = 8;

/// How an effect has ended.
struct FinishColumns<'a> {
    of: IdentityColumns<'a>,
    lease_token: &'a str,
    status: &'static str,
    result: Option<&'a str>,
    response_code: i64,
    last_error: String,
    is_first: bool,
}

impl<'a> FinishColumns<'a> {
    fn of(finish: &'a Finish, is_first: bool) -> Result<Self, Error> {
        check_text(&finish.lease_token)?;
        Ok(Self {
            of: IdentityColumns::of(&finish.identity)?,
            lease_token: &finish.lease_token,
            status: status_text(finish.status),
            result: finish.result.as_deref().map(RawValue::get),
            response_code: i64::from(finish.response_code),
            last_error: finish.last_error.replace('\0', "\u{fffd}"),
            is_first,
        })
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 11] {
        let IdentityColumns { tenant, kind, id, detail, key } = &self.of;
        [
            tenant,
            kind,
            id,
            detail,
            key,
            &self.lease_token,
            &self.status,
            &self.result,
            &self.response_code,
            &self.last_error,
            &self.is_first,
        ]
    }

    /// Those of [`FINISH_NEWEST`].
    fn typed_parameters(&self) -> [(&(dyn ToSql + Sync), Type); FINISH_NEWEST_PARAMETERS] {
        let parameters = self.parameters();
        array::from_fn(|n| (parameters[n], if n == RESPONSE_CODE { Type::INT8 } else { Type::TEXT }))
    }
}

/// Identifies a call: a call repeated has the same.
fn nonce() -> String {
    format!("{:016x}", random())
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, Error> {
    row.try_get(name).map_err(|error| protocol(format!("the answer of a function of the store: {error}")))
}

fn attempt(row: &Row) -> Result<u32, Error> {
    u32::try_from(column::<i32>(row, "attempt")?).map_err(|_| protocol("an effect has a negative attempt"))
}

fn result_of(row: &Row) -> Result<Option<Box<RawValue>>, Error> {
    let text = column::<Option<String>>(row, "result")?;
    let raw = text.map(RawValue::from_string).transpose();
    raw.map_err(|error| protocol(format!("the result of an effect is no JSON: {error}")))
}

fn response_code(row: &Row) -> Result<i32, Error> {
    i32::try_from(column::<i64>(row, "response_code")?).map_err(|_| protocol("a response code exceeds 32 bits"))
}

fn begun(row: &Row) -> Result<Begun, Error> {
    match column::<&str>(row, "decision")? {
        "EXECUTE" => {
            let mut grant = Grant::new(attempt(row)?, column::<String>(row, "lease_token")?);
            grant.idempotent = column(row, "idempotent")?;
            Ok(Begun::Execute(grant))
        }
        "REPLAY" => {
            let mut ended = Ended::new(status_of(column(row, "status")?)?);
            ended.response_code = response_code(row)?;
            ended.result = result_of(row)?;
            ended.last_error = column(row, "last_error")?;
            Ok(Begun::Replay(ended))
        }
        "IN_PROGRESS" => {
            let retry_after = u64::try_from(column::<i64>(row, "retry_after_ms")?).unwrap_or_default();
            Ok(Begun::InProgress { retry_after: Duration::from_millis(retry_after) })
        }
        "RETRYABLE" => Ok(Begun::Retryable { attempt: attempt(row)?, last_error: column(row, "last_error")? }),
        other => Err(protocol(format!("a begin was answered with the decision {other:?}"))),
    }
}

fn effect(row: &Row) -> Result<Effect, Error> {
    let mut effect = Effect::new(status_of(column(row, "status")?)?, attempt(row)?);
    effect.owner = column(row, "owner")?;
    effect.lease_until = column(row, "lease_until")?;
    effect.result = result_of(row)?;
    effect.response_code = response_code(row)?;
    effect.last_error = column(row, "last_error")?;
    effect.request_hash = column(row, "request_hash")?;
    effect.updated_at = column(row, "updated_at")?;
    effect.expires_at = column(row, "expires_at")?;
    Ok(effect)
}

fn identity_parts(row: &Row) -> Result<[String; 5], Error> {
    let part = |name| column::<String>(row, name);
    Ok([part("tenant")?, part("scope_kind")?, part("scope_id")?, part("scope_detail")?, part("key")?])
}

fn stored_effect(row: &Row) -> Result<StoredEffect, Error> {
    Ok(StoredEffect { identity: identity_in(identity_parts(row)?)?, effect: effect(row)? })
}

impl Store for PostgresStore {
    fn begin<'a>(&'a self, begin: &'a Begin) -> StoreFuture<'a, Begun> {
        Box::pin(self.begin_now(begin))
    }

    fn finish<'a>(&'a self, finish: &'a Finish) -> StoreFuture<'a, ()> {
        Box::pin(self.finish_now(finish))
    }

    fn reacquire<'a>(&'a self, identity: &'a Identity, owner: &'a str, lease: Duration) -> StoreFuture<'a, Grant> {
        Box::pin(self.reacquire_now(identity, owner, lease))
    }

    fn renew<'a>(&'a self, identity: &'a Identity, lease_token: &'a str, lease: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.renew_now(identity, lease_token, lease))
    }

    fn get<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, Option<Effect>> {
        Box::pin(self.get_now(identity))
    }

    fn forget<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, bool> {
        Box::pin(self.forget_now(identity))
    }
}

/// Which effects to list.
#[derive(Clone, Debug)]
pub struct List {
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// Of this kind of scope only: `consume`, `tenant`, `job`, `task` or `rpc`.
    pub scope_kind: Option<String>,
    /// With this status only.
    pub status: Option<EffectStatus>,
    /// Not changed for so long.
    pub older_than: Duration,
    /// How many at most, 1 to 1,000.
    pub limit: u32,
    /// The [`Page::next`] of the page before.
    pub after: Option<Vec<String>>,
}

impl Default for List {
    fn default() -> Self {
        Self { tenant: None, scope_kind: None, status: None, older_than: Duration::ZERO, limit: 100, after: None }
    }
}

/// A page of effects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The effects, in the order of their identities: each that is there throughout is in exactly one page.
    pub effects: Vec<StoredEffect>,
    /// What to give as [`List::after`] for the next page; none with the last.
    pub next: Option<Vec<String>>,
}

/// An effect with its identity.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredEffect {
    /// What it is known by.
    pub identity: Identity,
    /// How it stands.
    pub effect: Effect,
}
