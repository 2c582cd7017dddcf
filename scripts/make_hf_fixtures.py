#!/usr/bin/env python3
"""Small random models of each family with the logits that Hugging Face transformers gives:
crates/families/tests/fixtures/NAME/ (config.json, model.safetensors, tokenizer.json, and
expected.json: ids and the logits at each position, computed in float32 without sampling).

    .venv/bin/pip install -r scripts/requirements-hf.txt
    .venv/bin/python scripts/make_hf_fixtures.py

Sizes are odd on purpose: heads of their own size, shared K/V heads, windows shorter than the text.
The vocabulary is a byte-level one without merges; llama begins its texts with a token of its own.
"""
import json
import shutil
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

OUT = Path(__file__).parent.parent / "crates/families/tests/fixtures"
VOCAB = 262
COMMON = dict(vocab_size=VOCAB, max_position_embeddings=128, bos_token_id=256, eos_token_id=257,
              pad_token_id=258)
LLAMA = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, rms_norm_eps=1e-5)

FAMILIES = {
    "llama": hf.LlamaConfig(**COMMON, **LLAMA, rope_theta=10000.0, tie_word_embeddings=False),
    "llama3": hf.LlamaConfig(**COMMON, **LLAMA, tie_word_embeddings=True, rope_theta=500000.0, head_dim=8,
                             rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                               high_freq_factor=4.0, original_max_position_embeddings=32)),
    "linear": hf.LlamaConfig(**COMMON, **LLAMA, tie_word_embeddings=True, rope_theta=10000.0,
                             rope_scaling=dict(rope_type="linear", factor=4.0)),
    "yarn": hf.Qwen2Config(**COMMON, **LLAMA, rope_theta=10000.0, tie_word_embeddings=True,
                           rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": hf.MistralConfig(**COMMON, **LLAMA, sliding_window=13, head_dim=10),
    "qwen2": hf.Qwen2Config(**COMMON, **LLAMA, tie_word_embeddings=False),
    "qwen3": hf.Qwen3Config(**COMMON, **LLAMA, head_dim=16, tie_word_embeddings=True),
    "gemma3": hf.Gemma3TextConfig(**COMMON, **{**LLAMA, "num_hidden_layers": 4}, head_dim=12, sliding_window=11,
                                  query_pre_attn_scalar=20, sliding_window_pattern=3,
                                  final_logit_softcapping=5.0),
    "gpt2": hf.GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=24, n_layer=2, n_head=3,
                          bos_token_id=256, eos_token_id=257),
}

# What the weights are rounded to and stored as; bfloat16 where nothing is said.
STORED = {"llama": torch.float32, "mistral": torch.float16}


def tokenizer(begins: bool) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    out = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens(["<|begin|>", "<|end|>", "<|pad|>", "<|user|>"])
    if begins:
        out.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", out.token_to_id("<|begin|>"))])
    return out


def main():
    for name, config in FAMILIES.items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(5)
        model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                gain = "norm" in key or "ln_" in key
                p.copy_(torch.randn_like(p) * (0.3 if gain else 0.15))
                if gain and key.endswith("weight") and name != "gemma3":
                    p.add_(1.0)
                p.copy_(p.to(STORED.get(name, torch.bfloat16)).float())
        folder.mkdir(parents=True)
        tokenizer(name == "llama").save(str(folder / "tokenizer.json"), pretty=False)
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": "<|pad|>",
            "chat_template": "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"}))
        ids = torch.randint(0, 256, (1, 70), generator=torch.Generator().manual_seed(len(name)))
        with torch.no_grad():
            logits = model(ids).logits[0]
        places = [0, 13, 40, 64, 69]
        model.to(STORED.get(name, torch.bfloat16)).save_pretrained(folder)
        ends = [257, 259] if name == "llama" else 257
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        (folder / "expected.json").write_text(json.dumps({
            "ids": ids[0].tolist(), "places": places,
            "parameters": sum(p.numel() for p in set(model.parameters())),
            "logits": [[float(f"{x:.7g}") for x in logits[p].tolist()] for p in places]}))
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
