"""Files of a model folder, damaged. A stranger wrote them: a ModelError is the only way in which they may fail."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from weir.models.chat_template import ChatTemplate
from weir.models.checkpoint import SHARD_INDEX, SINGLE_FILE, find_checkpoint
from weir.models.end_tokens import end_tokens
from weir.models.errors import ModelError, PromptError
from weir.models.loader import load_weights
from weir.models.rope_table import rope_table
from weir.models.spec import ModelSpec
from weir.models.tensors import joined_tensors, num_parameters
from weir.models.tokenizer import Tokenizer

from tests.fuzz.mutation import any_value, damaged_bytes, damaged_json
from tests.unit.models.vocabularies import byte_level, save, sentencepiece

_CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
_FEW_POSITIONS = 64

_ROPE: tuple[dict[str, Any], ...] = (
    {"rope_theta": 10000.0},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5}},
    {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
)
_FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"sliding_window": 7},
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
)
_CONFIG: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
_TEMPLATE = (
    "{%- set first = messages[0] -%}"
    "{%- if first.role == 'system' -%}<|system|>{{ first.content | trim }}{{ eos_token }}"
    "{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set loop_messages = messages -%}{%- endif -%}"
    "{%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{- raise_exception('roles must alternate') -}}{%- endif -%}<|{{ message.role }}|>"
    "{%- generation -%}{{ message.content.split('x')[-1] | tojson(indent=2) }}{%- endgeneration -%}"
    "{%- if loop.last and add_generation_prompt -%}<|assistant|>{%- else -%}{%- continue -%}{%- endif -%}{%- endfor -%}"
    "{%- macro shout(text, times=3) -%}{{ text.upper() * times }}{%- endmacro -%}{{ shout('hi ') }}"
    "{%- set ns = namespace(total=0) -%}{%- for i in range(9) -%}{%- set ns.total = ns.total + i // 2 -%}{%- endfor -%}"
    "{{ ns.total }} {{ strftime_now('%d %b %Y') }} {{ bos_token ~ (tools or []) | length }}"
)
_FRAGMENTS = (
    *("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% include 'x' %}", "{% import 'x' as x %}"),
    *("{{ range(10 ** 9) | list }}", "{{ 1 / 0 }}", "{{ 'a' * 10 ** 8 }}", "{{ messages[9].content }}", "{{ lipsum }}"),
    *(
        "{{ 2 ** 10 ** 3 }}",
        "{{ '%10000d' % 1 }}",
        "{{ '{:>9999}'.format(1) }}",
        "{{ x.y.z }}",
        "{% set messages = 1 %}",
    ),
    *(
        "{{ [1, 2] | batch(0) | list }}",
        "{{ 'x' | indent('y') }}",
        "{{ messages | map('foo') | list }}",
        "{% block a %}",
    ),
    *(
        "{{ self }}",
        "{{ cycler() }}",
        "{{ joiner }}",
        "{{ namespace(a=1, a=2) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}",
    ),
    *("{{ f() }}", "{{ messages | tojson(indent=-1) }}", "{{ strftime_now(3) }}", "{{ strftime_now('%\ud800') }}"),
    *(
        "{{ messages | sort(attribute='z') }}",
        "{{ ''.join([1]) }}",
        "{{ 'é' | urlize(1) }}",
        "{% for a, b in [1] %}{% endfor %}",
    ),
    *(
        "{{ messages | groupby('role') | first | slice(0) | list }}",
        "{{ (1).__add__(2) }}",
        "{% break %}",
        "{{ 1 if }}",
    ),
    *(
        "{{ raise_exception() }}",
        "{{ raise_exception(1, 2) }}",
        "{{ messages | random }}",
        "{{ {}['a'] }}",
        "{{ -'a' }}",
    ),
)


class Configs:
    """config.json: everything that is known of a model before its weights are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def once(self, dice: random.Random) -> str:
        """How one damaged config ends."""
        config = {"architectures": [dice.choice(_FAMILIES)], **_CONFIG, **dice.choice(_ROPE), **dice.choice(_OPTIONS)}
        (self._folder / "config.json").write_bytes(damaged_json(dice, config))
        return _outcome(self._read)

    def _read(self) -> None:
        spec = ModelSpec.from_folder(self._folder)
        end_tokens(self._folder, None).disagreement()
        assert num_parameters(spec) > 0
        assert spec.kv_bytes_per_token(2) > 0
        few = min(spec.max_position_embeddings, _FEW_POSITIONS)
        cos, sin = rope_table(spec.rope, spec.head_dim, few, torch.device("cpu"))
        assert cos.shape == sin.shape == (few, spec.head_dim // 2)


class Tokenizers:
    """tokenizer.json and the two files beside it, to token ids of a text and of a chat."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kinds = []
        for kind, make in (("byte-level", byte_level), ("sentencepiece", sentencepiece)):
            whole = folder / kind
            save(make(), whole, _TEMPLATE)
            definition = json.loads((whole / "tokenizer.json").read_text())
            config = json.loads((whole / "tokenizer_config.json").read_text()) | {"chat_template": _TEMPLATE}
            self._kinds.append((definition, config))
        self._map = {"eos_token": "</s>", "bos_token": {"content": "<s>"}, "additional_special_tokens": ["<|user|>"]}

    def once(self, dice: random.Random) -> str:
        """How one damaged tokenizer ends; in one case of three another of its files is damaged."""
        definition, config = dice.choice(self._kinds)
        damaged = dice.choice(("tokenizer.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"))
        files = {"tokenizer.json": definition, "tokenizer_config.json": config, "special_tokens_map.json": self._map}
        for name, content in files.items():
            whole = json.dumps(content).encode()
            (self._folder / name).write_bytes(self._damaged(dice, content) if name == damaged else whole)
        return _outcome(self._use)

    def _damaged(self, dice: random.Random, content: dict[str, Any]) -> bytes:
        # Most of a tokenizer is its vocabulary, where one change is as good as another.
        content = dict(content)
        vocabulary = content.get("model", {})
        if vocabulary and dice.random() < 0.7:
            content["model"] = vocabulary | {"vocab": {}, "merges": []}
            return damaged_json(dice, content) if dice.random() < 0.1 else self._with_model(dice, content, vocabulary)
        if vocabulary and dice.random() < 0.5:
            vocab = dict(vocabulary["vocab"])
            vocab[dice.choice(list(vocab))] = any_value(dice)
            return json.dumps(content | {"model": vocabulary | {"vocab": vocab}}).encode()
        return damaged_json(dice, content)

    def _with_model(self, dice: random.Random, content: dict[str, Any], model: dict[str, Any]) -> bytes:
        rest = {name: value for name, value in content.items() if name != "model"}
        data = damaged_json(dice, rest).rstrip()
        return data[:-1] + b', "model": ' + json.dumps(model).encode() + b"}" if data.endswith(b"}") else data

    def _use(self) -> None:
        tokenizer = Tokenizer(self._folder)
        end_tokens(self._folder, tokenizer).disagreement()
        assert len(tokenizer.token_bytes) == tokenizer.vocab_size
        for encode, prompt in ((tokenizer.encode, "The river, größer 河 x\n"), (tokenizer.encode_chat, _CHAT)):
            try:
                ids = encode(prompt)  # type: ignore[operator]
            except PromptError:
                continue
            b"".join(tokenizer.token_bytes[token] for token in ids)


class Templates:
    """Chat templates: damaged ones, and ones that want what a template must not have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def once(self, dice: random.Random) -> str:
        """How one template ends, compiled and rendered."""
        source = _TEMPLATE
        for _ in range(dice.randint(0, 2)):
            at = dice.randint(0, len(source))
            source = source[:at] + dice.choice(_FRAGMENTS) + source[at:]
        if dice.random() < 0.1:
            source = dice.choice(_FRAGMENTS)
        data = source.encode(errors="surrogatepass")
        (self._folder / "chat_template.jinja").write_bytes(damaged_bytes(dice, data) if dice.random() < 0.7 else data)
        return _outcome(self._use)

    def _use(self) -> None:
        template = ChatTemplate.from_folder(self._folder)
        assert template is not None
        with contextlib.suppress(MemoryError):  # the process that renders has a limit for this, and says so
            assert isinstance(template.render(_CHAT), str)


class Weights:
    """Headers of safetensors files, and the index of shards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = {"architectures": ["LlamaForCausalLM"], **_CONFIG}
        self._spec = ModelSpec.from_config(config)
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {
            name: np.ones(shape, np.float32) for tensor in joined_tensors(self._spec) for name, shape in tensor.parts
        }
        names = list(tensors)
        self._shards = ["model-1.safetensors", "model-2.safetensors"]
        self._index = {"metadata": {"total_size": 1}, "weight_map": {}}
        for place, shard in enumerate(self._shards):
            own = {name: tensors[name] for name in names[place::2]}
            save_file(own, folder / shard)
            self._index["weight_map"] |= dict.fromkeys(own, shard)
        save_file(tensors, folder / SINGLE_FILE)
        self._whole = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}

    def once(self, dice: random.Random) -> str:
        """How a folder with one damaged file ends."""
        for path in (*self._folder.glob("*.safetensors"), self._folder / SHARD_INDEX):
            path.unlink(missing_ok=True)
        files: dict[str, bytes] = {}
        if single := dice.random() < 0.6:
            files[SINGLE_FILE] = self._whole[SINGLE_FILE]
        if not single or dice.random() < 0.3:
            files |= {name: self._whole[name] for name in self._shards}
            files[SHARD_INDEX] = json.dumps(self._index).encode()
        damaged = dice.choice(list(files))
        if damaged == SHARD_INDEX:
            files[damaged] = damaged_json(dice, self._index)
        else:
            files[damaged] = _damaged_weights(dice, files[damaged])
        for name, data in files.items():
            (self._folder / name).write_bytes(data)
        return _outcome(self._use)

    def _use(self) -> None:
        find_checkpoint(self._folder)
        weights = load_weights(self._folder, replace(self._spec), torch.float32, torch.device("cpu"))
        assert all(tensor.isfinite().all() for tensor in weights.values())


def _damaged_weights(dice: random.Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + size], data[8 + size :]
    if dice.random() < 0.2:
        return damaged_bytes(dice, data)
    header = damaged_json(dice, json.loads(header))
    size = len(header) if dice.random() < 0.9 else dice.choice((0, 1, len(header) + 1, 2**31, 2**63, 2**64 - 1))
    return size.to_bytes(8, "little") + header + rest


def _outcome(use: Callable[[], None]) -> str:
    try:
        use()
    except ModelError as error:
        kind, message = type(error).__name__, str(error)
    else:
        return "taken"
    assert 0 < len(message) <= 4096, "an error without a word, or that nobody can read"
    message.encode()
    return kind
