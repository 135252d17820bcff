#!/bin/bash
# GPT of 345M parameters, as its launch script has it.
GPT_ARGS="
    --num-layers 24 \
    --hidden-size 1024 \
    --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --vocab-size 50257 \
    --attention-dropout 0.1 --hidden-dropout 0.1
"
TRAIN_ARGS="--micro-batch-size 4 --global-batch-size 32 --rampup-batch-size 8 8 100000 --lr 0.00015 --min-lr=1.0e-5
    --train-samples 500000 --lr-warmup-fraction .01 --lr-decay-style cosine --weight-decay 1e-2 --clip-grad 1.0 --fp16
    --adam-beta2 0.95 --tensor-model-parallel-size 2 --recompute-activations"
