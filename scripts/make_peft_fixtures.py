#!/usr/bin/env python3
"""Adapters on the small random models of make_hf_fixtures.py, made and saved by the PEFT library, with the
logits that it gives: crates/families/tests/fixtures/peft-NAME/ (adapter_config.json,
adapter_model.safetensors, expected.json: ids and the logits at some positions, in float32).

    .venv/bin/pip install -r scripts/requirements-hf.txt peft==0.21.2
    .venv/bin/python scripts/make_peft_fixtures.py
"""
import json
import shutil
from pathlib import Path

import peft
import torch
import transformers as hf

OUT = Path(__file__).parent.parent / "crates/families/tests/fixtures"
ADAPTERS = {
    "llama": dict(r=4, lora_alpha=10, target_modules=["q_proj", "k_proj", "v_proj", "gate_proj", "down_proj"]),
    "gemma3": dict(r=3, lora_alpha=6, target_modules=["v_proj", "o_proj", "up_proj"], use_rslora=True),
    "gpt2": dict(r=2, lora_alpha=8, target_modules=["attn.c_proj", "c_fc", "mlp.c_proj"], fan_in_fan_out=True),
}


def main():
    for name, numbers in ADAPTERS.items():
        torch.manual_seed(7)
        base = hf.AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float32, attn_implementation="eager")
        model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **numbers)).eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "lora_" in key:
                    p.copy_(torch.randn_like(p) * 0.2)
        ids = torch.randint(0, 256, (1, 30), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            logits = model(ids).logits[0]
        folder = OUT / f"peft-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = name
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
        places = [0, 13, 29]
        (folder / "expected.json").write_text(json.dumps({
            "ids": ids[0].tolist(), "places": places,
            "logits": [[float(f"{x:.7g}") for x in logits[p].tolist()] for p in places]}))
        print(folder.name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
