"""Where previous-token and induction heads matter: the questions, each with the comparison that answers it."""

from __future__ import annotations

from dataclasses import dataclass

from structured_init.errors import StructuredInitError

TEXT = "default,previous_token,two=previous_token{offsets=[1,2]}"
ONE = "one=previous_token{offsets=[1]}"
BOTH = ["--controls", "auto"]
FIVE, THREE = ["--seeds", "0-4"], ["--seeds", "0-2"]
LAYERS, WIDTH, HEADS = (
    f"model.init_args.network_args.{name}" for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
)
PAIRS, LENGTH = "data.init_args.task_args.num_pairs", "data.init_args.{}_length"


@dataclass(frozen=True)
class Question:
    """One comparison.

    Attributes:
        asks: what it is to answer.
        words: arguments of ``structured-init compare``.
    """

    asks: str
    words: list[str]


def recall(host: str, inits: str, pairs: int, length: int) -> list[str]:
    """Return the arguments of associative recall of so many pairs in so many tokens, tested at that length."""
    lengths = [word for end in ("min", "max") for word in (f"--{LENGTH.format(end)}", str(length))]
    lengths += ["--data.init_args.test_lengths", f"[{length}]"]
    return ["-c", host, "--inits", inits, *BOTH, *THREE, f"--{PAIRS}", str(pairs), *lengths]


def steps(count: int, of_epoch: int) -> list[str]:
    """Return the arguments that train for so many steps where an epoch is limited to some."""
    return ["--trainer.max_epochs", str(count // of_epoch)]


QUESTIONS: dict[str, Question] = {
    "characters": Question(
        "Characters of Shakespeare, 600 steps: how much, beside its controls?",
        ["-c", "gpt_shakespeare_short", "--inits", f"{TEXT},{ONE}", *BOTH, *FIVE],
    ),
    "python_docs": Question(
        "Characters of Python's documentation, 600 steps: the same?",
        ["-c", "gpt_python_docs_short", "--inits", f"{TEXT},{ONE}", *BOTH, *FIVE],
    ),
    "architecture": Question(
        "The same beside what people build in: a token shift, a short convolution before attention",
        [
            *["-c", "gpt_shakespeare_short", *BOTH, *FIVE, "--inits"],
            "default,previous_token,token_mixing/token_shift,token_mixing/short_convolution",
        ],
    ),
    "characters_long": Question(
        "Characters of Shakespeare, 3,000 steps: does the gain persist, shrink to a head start, or turn?",
        ["-c", "gpt_shakespeare_short", "--inits", "default,previous_token", *BOTH, *FIVE, *steps(3000, 150)],
    ),
    "python_docs_long": Question(
        "Characters of Python's documentation, 3,000 steps: the same?",
        ["-c", "gpt_python_docs_short", "--inits", "default,previous_token", *BOTH, *FIVE, *steps(3000, 150)],
    ),
    **{
        f"bpe_{count}": Question(
            f"WikiText-2 with a byte-pair vocabulary of 2,048, {count:,} steps: which mix of offsets never loses?",
            ["-c", "gpt_wikitext_short", "--inits", f"{TEXT},{ONE}", *BOTH, *FIVE, *steps(count, 125)],
        )
        for count in (500, 1000, 2000, 5000)
    },
    "learning_rates": Question(
        "Characters of Shakespeare, with the learning rate swept for every arm",
        ["-c", "gpt_shakespeare_short", "--inits", TEXT, *BOTH, *THREE, "--learning-rates", "1e-3,3e-3,1e-2"],
    ),
    "depth": Question(
        "Characters of Shakespeare: does the gain depend on depth?",
        ["-c", "gpt_shakespeare_short", "--inits", TEXT, *BOTH, *THREE, "--grid", f"{LAYERS}=2,4,8,12"],
    ),
    "width": Question(
        "Six layers of width 384, as in the long experiment on Shakespeare: does it transfer?",
        [
            *["-c", "gpt_shakespeare_short", "--inits", "default,previous_token", *BOTH, "--seeds", "0-1"],
            *[f"--{WIDTH}", "384", f"--{LAYERS}", "6", f"--{HEADS}", "6"],
            *["--model.init_args.optimizer.init_args.lr", "1e-3", *steps(1500, 150)],
        ],
    ),
    "mimetic": Question(
        "Is there a mimetic initialization that helps language, once its values have the right size?",
        [
            *["-c", "gpt_shakespeare_short", *THREE, *BOTH, "--inits"],
            "default,mimetic_language,mimetic_stream,mimetic_stream_all,value_output_stream,"
            "small=mimetic_stream_all{stream_share=0.15},negative=value_output_stream{vo_sign=-1}",
        ],
    ),
    **{
        f"recall_{pairs}_pairs": Question(
            f"Associative recall of {pairs} pairs in {8 * pairs} tokens, 1,600 steps",
            recall("gpt_mqar_short", "default,previous_token,induction", pairs, 8 * pairs),
        )
        for pairs in (4, 8, 16, 32)
    },
    **{
        f"recall_{length}_tokens": Question(
            f"Associative recall of 8 pairs in {length} tokens",
            recall("gpt_mqar_short", "default,induction", 8, length),
        )
        for length in (128, 256, 512)
    },
    "recall_llama": Question(
        "Associative recall of 8 pairs in 64 tokens, under rotary positions",
        recall("llama_mqar_short", "default,previous_token,induction", 8, 64),
    ),
    "recall_mamba2": Question(
        "The same by Mamba-2, with and without its own mimetic initialization",
        [
            *["-c", "mamba2_mqar_short", "--inits", "default,mimetic_state_space", *THREE],
            *["--grid", "model.init_args.network_args.state_size=16,32,64"],
        ],
    ),
    **{
        f"encoder_{name}": Question(
            f"An encoder from scratch on {words}: heads that look both ways, or back alone",
            [
                *["-c", f"bert_{name}_short", *BOTH, *FIVE, "--inits"],
                "default,previous_token,neighbours=previous_token{offsets=[1,-1]},back=previous_token{offsets=[1,2]}",
            ],
        )
        for name, words in (("trec", "TREC's questions"), ("sst2", "SST-2"))
    },
}


def commands(only: list[str] | None) -> dict[str, list[str]]:
    """Return the comparisons that are asked for, all where ``None``.

    Raises:
        StructuredInitError: one of them is none.
    """
    unknown = set(only or ()) - set(QUESTIONS)
    if unknown:
        raise StructuredInitError(f"sequences has no comparison '{min(unknown)}': it has {', '.join(QUESTIONS)}")
    return {name: QUESTIONS[name].words for name in only or QUESTIONS}
