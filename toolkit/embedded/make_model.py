"""Makes a tiny Qwen3 with random weights and a tokenizer. A program for the engine environment's Python:

    python make_model.py FOLDER

Imports nothing of the toolkit, which that environment does not have. Same machine, same result (fixed seed).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before the imports that read them.
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 20
VOCABULARY = 4096
LONGEST_CONTEXT = 32768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def english() -> Iterator[str]:
    """Text that comes with every Python: its help topics and the sources of some packages."""
    import pydoc_data.topics

    yield from pydoc_data.topics.topics.values()
    library = Path(os.__file__).parent
    for package in ("asyncio", "email", "json", "logging", "unittest"):
        for path in sorted((library / package).glob("*.py")):
            yield path.read_text(encoding="utf-8")


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(english(), trainer)
    return tokenizer


def whole_words(tokenizer: Tokenizer) -> list[int]:
    """Tokens that are a space and a word, and that the tokenizer gives back for that text.

    Any sequence of them is read back as the same tokens, so a reply that a client sends again in the next
    turn is the very history whose KV was kept, as it mostly is with a trained model.
    """
    words = []
    for piece, token in tokenizer.get_vocab().items():
        word = piece.removeprefix("Ġ")
        if word != piece and len(word) > 2 and word.isascii() and word.isalpha():
            same = tokenizer.encode(f" {word}", add_special_tokens=False).ids == [token]
            words += [token] if same else []
    return sorted(words)


def make_weights(model: Qwen3ForCausalLM, spoken: list[int]) -> None:
    """Weights of a normal scale, so that logits, and with them greedy tokens, depend on all of the KV.

    Only the tokens `spoken` get an output row: all others keep logit 0 and never win, the end of text among
    them, so a generation runs to its limit.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                spread = 1.0 if "embed_tokens" in name else 1.6 / parameter.shape[1] ** 0.5
                parameter.normal_(0, spread, generator=generator)
        silent = torch.ones(model.lm_head.weight.shape[0], dtype=torch.bool)
        silent[spoken] = False
        # Three times wider: the best token then leads by far more than float32's rounding.
        model.lm_head.weight.mul_(3)
        model.lm_head.weight[silent] = 0


def make_model(folder: Path) -> None:
    tokenizer = train_tokenizer()
    start, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=LONGEST_CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=start,
        torch_dtype="float32",
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    make_weights(model, whole_words(tokenizer))
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=LONGEST_CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
