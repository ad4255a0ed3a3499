"""Settings to a ready engine: model, KV pool, scheduler. Refuses at start what could never work later."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from weir_kernels.cpu.threads import compute_threads
from weir_kernels.dispatch import KernelError

from weir.config import ConfigError, Settings, format_size
from weir.engine.blocks import BlockHasher, BlockPool, blocks_for
from weir.engine.core import EngineCore
from weir.engine.detokenizer import TokenTable
from weir.engine.gpu_batch import StepShape
from weir.engine.plan import SchedulerLimits
from weir.engine.pool_size import check_memory, pool_blocks
from weir.engine.records import EngineInfo
from weir.engine.runner import Runner, StepRunner
from weir.engine.sampler import Sampler
from weir.engine.scheduler import Scheduler
from weir.engine.tenants import tenants_of
from weir.engine.validation import RequestLimits
from weir.engine.waiting import WaitingQueue
from weir.engine.warm_up import require_finite_logits
from weir.models.build import build_decoder
from weir.models.check import open_tokenizer
from weir.models.cpu_decoder import CpuDecoder
from weir.models.decoder import Decoder
from weir.models.end_tokens import end_tokens
from weir.models.loader import Report, no_report
from weir.models.spec import ModelSpec
from weir.models.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_BLOCK_SIZE = {"cpu": 32, "cuda": 16}


def say_which_gpu(used: int, visible: int, logger: logging.Logger) -> None:
    """A replica computes on one GPU; others that it can see stand idle, which must not go without a word."""
    if visible > 1:
        logger.warning(
            "computing on GPU %d of %d visible ones; the others are idle: start a replica for each", used, visible
        )


def load_engine(settings: Settings, report: Report = no_report) -> EngineCore:
    """Load the model and size the KV pool. Raises ConfigError, or a ModelError that names what is wrong.

    report: is told how far loading is.
    """
    model, engine = settings.model, settings.engine
    folder = Path(model.model)
    tokenizer = open_tokenizer(folder, random_weights=model.load_format == "dummy")
    threads = engine.threads or compute_threads()
    torch.set_num_threads(threads)
    spec = ModelSpec.from_folder(folder)
    max_model_len = _model_length(model.max_model_len, spec.max_position_embeddings)
    try:
        check_memory(engine, spec, model, max_model_len)
        decoder = build_decoder(
            model.model,
            dtype=model.dtype,
            device=model.device,
            kernels=model.kernels,
            kv_cache_dtype=engine.kv_cache_dtype,
            load_format=model.load_format,
            threads=threads,
            max_positions=max_model_len,
            report=report,
        )
    except KernelError as error:
        raise ConfigError(str(error)) from None
    device = decoder.device
    if device.type == "cuda":
        used = torch.cuda.current_device() if device.index is None else device.index
        say_which_gpu(used, torch.cuda.device_count(), _log)
    block_size = engine.block_size or _BLOCK_SIZE[device.type]
    shape = StepShape(engine.max_batch_tokens, engine.max_running, blocks_for(max_model_len, block_size), block_size)
    report("making room for the KV pool and for steps")
    try:
        num_blocks = pool_blocks(engine, decoder, shape, max_model_len)
        runner = _runner(decoder, num_blocks, shape, engine.cuda_graphs)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"the {decoder.kernels} kernels cannot serve this with these settings: {error}") from None
    info = EngineInfo(
        model_name=model.served_model_name or folder.name,
        model_path=str(model.model),
        architecture=spec.architecture,
        dtype=str(decoder.dtype).removeprefix("torch."),
        device=str(device),
        kernels=decoder.kernels,
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        block_size=block_size,
        kv_total_tokens=num_blocks * block_size,
        kv_bytes_per_token=decoder.kv_bytes_per_block(block_size) // block_size,
        max_batch_tokens=engine.max_batch_tokens,
        max_running=engine.max_running,
        default_max_tokens=min(engine.default_max_tokens, max_model_len),
        eos_token_ids=end_tokens(folder, tokenizer).ids,
    )
    tenants = tenants_of(engine)
    scheduler = Scheduler(
        SchedulerLimits(
            engine.max_running,
            engine.max_batch_tokens,
            engine.admission,
            engine.overcommit,
            engine.preempt_lower_priority,
            engine.bypass_scan,
            runner.steps_ahead,
        ),
        BlockPool(num_blocks, block_size, engine.prefix_cache),
        BlockHasher(block_size, info.model_name, tenants=tenants),
        WaitingQueue(tenants, engine.bypass_limit, engine.bypass_age_s),
        tenants,
    )
    return EngineCore(info, request_limits(settings, info), scheduler, runner, _token_table(tokenizer), tenants)


def request_limits(settings: Settings, info: EngineInfo) -> RequestLimits:
    """What validation needs to know, in the engine and in the process that accepts requests."""
    engine = settings.engine
    return RequestLimits(
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        kv_blocks=info.kv_total_tokens // info.block_size,
        max_running=engine.max_running,
        max_choices=engine.max_choices,
        max_logprobs=engine.max_logprobs,
        max_stop_strings=engine.max_stop_strings,
        max_stop_string_chars=engine.max_stop_string_chars,
        max_logit_bias=engine.max_logit_bias,
    )


def _token_table(tokenizer: Tokenizer | None) -> TokenTable:
    if tokenizer is None:
        return TokenTable([])
    return TokenTable(
        tokenizer.token_bytes, tokenizer.special_ids, tokenizer.strips_leading_space, tokenizer.first_token_bytes
    )


def _model_length(wanted: int | None, positions: int) -> int:
    if wanted is not None and wanted > positions:
        raise ConfigError(f"max-model-len {wanted} is more than the model's own limit of {positions}")
    return wanted or positions


def _runner(decoder: Decoder | CpuDecoder, num_blocks: int, shape: StepShape, cuda_graphs: bool) -> StepRunner:
    try:
        kv = decoder.allocate_kv(num_blocks, shape.block_size)
    except (RuntimeError, MemoryError):
        size = num_blocks * decoder.kv_bytes_per_block(shape.block_size)
        raise ConfigError(f"there is no room for a KV pool of {format_size(size)}: give it less kv-memory") from None
    require_finite_logits(decoder, kv, shape.block_size)
    if isinstance(decoder, Decoder) and decoder.kernels == "triton":
        from weir.engine.gpu_load import gpu_runner  # late: it imports Triton, which not every machine has

        return gpu_runner(decoder, kv, shape, cuda_graphs)
    return Runner(decoder, kv, Sampler(decoder.spec.vocab_size, decoder.device), shape.block_size, decoder.device)
