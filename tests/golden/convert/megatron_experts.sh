# Mixtral's shape, on pipelines of four ranks with two chunks each
python pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --ffn-hidden-size 14336 --seq-length 4096 --max-position-embeddings 32768 \
    --position-embedding-type rope --rotary-base 1000000 --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 \
    --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 0.02 --moe-grouped-gemm \
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 4 \
    --num-layers-per-virtual-pipeline-stage 4 --expert-model-parallel-size 8 --use-distributed-optimizer \
    --overlap-grad-reduce --micro-batch-size 1 --global-batch-size 256 --train-iters 500000 --lr 1e-4 --bf16 \
    --vocab-size 32000
