//! Rows of what the broker remembers: idempotency keys, effects, results of steps.

use super::measurement::{Turns, of_each};
use super::names::RowName;
use super::options::TableOptions;
use super::rows::Reading;
use crate::load::cli::{EffectsOptions, KeysOptions, StepsOptions};
use crate::load::error::Result;
use crate::load::modes::slices::Figures;
use crate::load::modes::{effects, keys, steps};
use crate::load::report::median;
use crate::numbers::grouped;

/// The longest turn of a comparison with a broker that remembers nothing: in a longer one it remembers a lot.
const TURN_SECONDS_MAX: f64 = 1.0;

type Readings = Vec<(RowName, Reading)>;

fn effects_options(options: &TableOptions) -> EffectsOptions {
    EffectsOptions {
        connections: 64,
        seconds: options.seconds,
        result_size: 20,
        ceiling: true,
        records: None,
        broker: options.broker.clone(),
    }
}

pub(super) async fn keys(turns: &mut Turns<'_>) -> Result<Readings> {
    turns.begin_all()?;
    let options = turns.options;
    let plan = KeysOptions {
        keys: options.records,
        connections: 64,
        seconds: options.seconds.min(TURN_SECONDS_MAX),
        turns: options.turns,
        broker: options.broker.clone(),
    };
    let figures = keys::measure(&plan).await?;
    figures.print();
    turns.failures.merge(&figures.failures);
    Ok(vec![(RowName::KeysCpu, Reading::of(figures.cpu_ratios()))])
}

pub(super) async fn effects(turns: &mut Turns<'_>) -> Result<Readings> {
    turns.begin_all()?;
    let options = turns.options;
    let plan = EffectsOptions { seconds: options.seconds.min(TURN_SECONDS_MAX), ..effects_options(options) };
    let figures = effects::measure_records(&plan, options.records, options.turns).await?;
    figures.print();
    turns.failures.merge(&figures.failures);
    let remark = format!("p50 of both {:.2} ×", median(figures.p50_ratios()));
    Ok(vec![
        (RowName::EffectsCpu, Reading::of(figures.cpu_ratios()).remark(remark)),
        (RowName::EffectsMemory, Reading::once(figures.bytes_beyond())),
    ])
}

pub(super) async fn effects_beside_hyper(turns: &mut Turns<'_>) -> Result<Readings> {
    let measure = async |options: &TableOptions, _turn| {
        let figures = effects::measure(&effects_options(options)).await?;
        figures.print(effects::print_server);
        let failures = figures.failures();
        Ok((figures, failures))
    };
    let all = turns.each(measure).await?;
    let rate = median(of_each(&all, |figures| Some(figures.server.rate())));
    let remark = format!("{} requests/s", grouped(rate as u64));
    Ok(vec![(RowName::EffectsHyper, Reading::of(of_each(&all, Figures::ratio)).remark(remark))])
}

pub(super) async fn steps(turns: &mut Turns<'_>) -> Result<Readings> {
    let measure = async |options: &TableOptions, _turn| {
        let plan = StepsOptions {
            workers: 16,
            outputs: 2,
            seconds: options.seconds,
            size: 200,
            partitions: 16,
            in_flight: 4,
            prefetch: None,
            messages: None,
            plain: false,
            broker: options.broker.clone(),
        };
        let figures = steps::measure(&plan).await?;
        figures.print();
        Ok((figures.rate, figures.failures))
    };
    Ok(vec![(RowName::Steps, Reading::of(turns.each(measure).await?))])
}
