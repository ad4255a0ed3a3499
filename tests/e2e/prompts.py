"""Fourteen prompts of 1 to 1,500 tokens in several scripts, for comparisons with the reference implementation."""

from __future__ import annotations

_FABLE = (
    "A miller and his son were driving their donkey to a fair. They had not gone far when they met a group of girls "
    "returning from the town, talking and laughing. 'Look there,' cried one of them, 'did you ever see such fools?' "
)

PROMPTS = {
    "one token": "The",
    "question": "What is the capital of France?",
    "english": "Once upon a time, in a small village by the sea,",
    "list": "The first ten prime numbers are 2, 3, 5,",
    "python": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "json": '{"name": "weir", "replicas": 2, "ports": [',
    "chinese": "从前有座山,山里有座庙,庙里有个老和尚在",
    "emoji": "👩‍👩‍👧‍👦 family day 🎉🎂! Today we are going to",
    "mixed": "Γειά σου Κόσμε, 안녕하세요, こんにちは — hello in many languages:",
    "spaces": "   indented\n\n\n\tand   tabbed   text",
    "paragraph": _FABLE,
    "long": _FABLE * 8,
    "1500 tokens": _FABLE * 24,
}
