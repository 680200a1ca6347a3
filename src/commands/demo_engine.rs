//! `dunlin demo-engine`: the simulated engine by itself.

use crate::{args::DemoEngineArgs, output, signals};
use anyhow::Result;
use dunlin_agent::demo::{Adapter, Config, Death, Engine, Faults, Speed};
use std::time::Duration;

pub(crate) async fn run(args: DemoEngineArgs) -> Result<()> {
    let shutdown = signals::shutdown(|| async {})?;
    let engine = Engine::bind(config(&args))?;
    output::line(&format!("demo engine on http://{}", engine.local_addr()))?;
    engine.run(shutdown).await;
    Ok(())
}

fn config(args: &DemoEngineArgs) -> Config {
    let adapter = |id: &dunlin_protocol::id::ModelId| Adapter { name: id.to_string(), path: format!("/adapters/{id}") };
    Config {
        listen: args.http,
        models: args.models.iter().map(ToString::to_string).collect(),
        root: args.root.clone(),
        adapters: args.adapters.iter().map(adapter).collect(),
        speed: Speed {
            first_token: Duration::from_millis(args.ttft_ms),
            per_prompt_token: Duration::from_micros(args.prefill_us),
            tokens_per_s: args.tokens_per_second,
        },
        slots: args.slots,
        kv_tokens: args.kv_tokens,
        prefix_cache: !args.no_prefix_cache,
        context: args.context,
        metrics_bytes: args.metrics_bytes,
        faults: Faults {
            hang_before_headers: args.hang,
            die_after_tokens: args.die_after,
            death: if args.die_exits { Death::Exit } else { Death::Reset },
            error_rate: args.error_rate,
            metrics_delay_ms: args.metrics_delay_ms,
            no_metrics: args.no_metrics,
            ..Faults::default()
        },
        may_exit: true,
        record: args.record,
        ..Config::default()
    }
}
