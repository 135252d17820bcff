#!/usr/bin/env python3
"""Encoding speed of SentencePiece on one thread, in CPU time.

    encode_sentencepiece.py TOKENIZER.model TEXT

The text is encoded as documents of about 10 kB. Prints one line of JSON. Needs the package sentencepiece.
"""
import sys

from encode_tokenizers import print_speed


def main():
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
    print_speed(lambda docs: [model.encode(d) for d in docs], sys.argv[2])


if __name__ == "__main__":
    main()
