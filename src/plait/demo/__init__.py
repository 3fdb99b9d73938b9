"""The main job on a real model, in minutes: `python -m plait.demo`.

Four small experts are fine-tuned from one sentence encoder and merged one by one; one of them is taken out
again, and the result is checked byte for byte. All data and the encoder come out of installed packages; nothing
is downloaded.
"""
