"""Makes a 460 KB model with random weights, for tests of the real server: `python mk_tiny_gguf.py OUT.gguf [tools]`.

Its vocabulary is the 256 bytes, so any prompt costs about one token a character. With `tools` its chat template renders
the tools' names; without, it drops them in silence, as many real ones do. Needs the dev dependency `gguf`.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

VOCABULARY = 3 + 256
WIDTH, LAYERS, INNER, HEADS = 64, 2, 128, 4
TOOLS = "{%- for t in tools or [] %}<|tool|>{{ t.function.name }}\n{%- endfor %}"
CHAT = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{%- endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make(path: str, tools: bool) -> None:
    """Write the model."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, (TOOLS if tools else "") + CHAT)
    random = np.random.default_rng(0)

    def matrix(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.05).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    matrix("token_embd", VOCABULARY, WIDTH)
    ones("output_norm")
    matrix("output", VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm")
        ones(f"{block}.ffn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}.{part}", WIDTH, WIDTH)
        matrix(f"{block}.ffn_gate", INNER, WIDTH)
        matrix(f"{block}.ffn_up", INNER, WIDTH)
        matrix(f"{block}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, template: str) -> None:
    writer.add_name("tiny-random")
    writer.add_context_length(262_144)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([2, 3, 3] + [6] * 256)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(template)


if __name__ == "__main__":
    make(sys.argv[1], "tools" in sys.argv[2:])
