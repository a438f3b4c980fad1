/* tiny: programs as tables. Made by poetc. */
#include "model.h"

#include <math.h>

int poetc_op_cross_entropy(const poetc_call *call);
int poetc_op_cross_entropy_grad(const poetc_call *call);
int poetc_op_matmul(const poetc_call *call);
int poetc_op_momentum(const poetc_call *call);
int poetc_op_relu(const poetc_call *call);
int poetc_op_relu_grad(const poetc_call *call);

static const poetc_ref train_refs[] = {
    38u, 0u, 50u, 50u, 50u, 50u, 50u, 12u, 66u, 66u, 58u, 78u, 66u, 58u, 66u, 66u, 12u, 50u, 58u, 66u, 58u,
    72u, 12u, 20u, 72u, 18u, 12u, 20u, 62u, 62u, 50u, 62u, 62u, 38u, 50u, 0u, 26u, 50u, 18u, 0u, 26u,
};

static const int32_t train_ints[] = {
    4, 4, 6, 0, 1, 0, 0, 16, 0, 0, POETC_PAGE_THIS_RUN, 4, 3, 4, 0, 1, 0, 0, 4, 3, 1, 0, 4, 0,
    (-2147483647 - 1), 4, 4, 3, 0, 0, 0, 0, 3, 4, 4, 1, 0, 0, 0, 12, 0, 4, 6, 4, 1, 0, 0, 0, 24, 0,
};

static const float train_floats[] = {
    0x1p+0f, 0x1p+0f, 0x0p+0f, 0x1.ccccccp-1f, 0x0p+0f,
};

static const poetc_instruction train_instructions[] = {
    {poetc_op_matmul, train_refs + 0, train_ints + 0, train_floats + 0, POETC_COMPUTE}, /* MatMul(h) */
    {poetc_op_relu, train_refs + 3, train_ints + 7, NULL, POETC_COMPUTE}, /* Relu(a) */
    {NULL, train_refs + 5, train_ints + 8, NULL, POETC_PAGE_OUT}, /* a */
    {NULL, train_refs + 5, train_ints + 9, NULL, POETC_PAGE_IN}, /* a */
    {poetc_op_matmul, train_refs + 6, train_ints + 11, train_floats + 0, POETC_COMPUTE}, /* MatMul(logits) */
    {poetc_op_cross_entropy, train_refs + 9, train_ints + 18, train_floats + 1, POETC_COMPUTE}, /* CrossEntropy(loss) */
    {poetc_op_cross_entropy_grad, train_refs + 12, train_ints + 18, train_floats + 1, POETC_COMPUTE}, /* CrossEntropyGrad(logits.grad) */
    {poetc_op_matmul, train_refs + 15, train_ints + 25, train_floats + 0, POETC_COMPUTE}, /* MatMul(a.grad) */
    {NULL, train_refs + 18, train_ints + 9, NULL, POETC_PAGE_IN}, /* a */
    {poetc_op_matmul, train_refs + 19, train_ints + 32, train_floats + 0, POETC_COMPUTE}, /* MatMul(fc2.weight.grad) */
    {poetc_op_momentum, train_refs + 22, train_ints + 39, train_floats + 3, POETC_COMPUTE}, /* Momentum(fc2.weight@1) */
    {NULL, train_refs + 28, train_ints + 9, NULL, POETC_PAGE_IN}, /* a */
    {poetc_op_relu_grad, train_refs + 29, train_ints + 7, NULL, POETC_COMPUTE}, /* ReluGrad(a.ReluGrad) */
    {poetc_op_matmul, train_refs + 32, train_ints + 41, train_floats + 0, POETC_COMPUTE}, /* MatMul(fc1.weight.grad) */
    {poetc_op_momentum, train_refs + 35, train_ints + 48, train_floats + 3, POETC_COMPUTE}, /* Momentum(fc1.weight@1) */
};

static const poetc_page train_pages[] = {
    {12u, 64u, 1u}, /* a */
};

const poetc_binding tiny_train_inputs[] = {
    {"x", 304u, 96u},
    {"target", 464u, 16u},
};

const poetc_binding tiny_train_outputs[] = {
    {"loss", 624u, 4u},
};

const poetc_program tiny_train = {
    .instructions = train_instructions,
    .instruction_count = 15u,
    .pages = train_pages,
    .page_count = 1u,
    .absences = NULL,
    .absence_count = 0u,
    .block_bytes = 64u,
    .page_buffer_offset = 640u,
    .arena_bytes = 704u,
    .state_bytes = 304u,
    .regions = tiny_regions,
    .region_count = 5u,
    .flash_bytes = 0u,
    .loss_offset = 624u,
    .updates_state = 1,
};

const poetc_limit tiny_limits[] = {
    {POETC_F32, 0, -1, 0}, /* x */
    {POETC_I32, 0, 2, 0}, /* target */
};

const poetc_region tiny_regions[] = {
    {0u, 96u}, {208u, 96u}, {96u, 48u}, {160u, 48u}, {144u, 16u},
};

const poetc_model tiny_model = {
    .train = {
        .program = &tiny_train,
        .inputs = tiny_train_inputs,
        .limits = tiny_limits,
        .outputs = tiny_train_outputs,
        .input_count = 2u,
        .output_count = 1u,
    },
    .state_image = tiny_state,
    .constants = NULL,
    .state = {tiny_regions, 5u, POETC_MODEL_IDENTITY},
    .emission = POETC_MODEL_EMISSION,
    .store_blocks = 14u,
    .checkpoint_block = 0u,
    .buffer_offset = 640u,
    .learning_rate_offset = 144u,
};

const poetc_model tiny_loop = {
    .train = {
        .program = &tiny_train,
        .inputs = tiny_train_inputs,
        .limits = tiny_limits,
        .outputs = tiny_train_outputs,
        .input_count = 2u,
        .output_count = 1u,
    },
    .state_image = tiny_state,
    .constants = NULL,
    .state = {tiny_regions, 5u, POETC_MODEL_IDENTITY},
    .emission = POETC_MODEL_EMISSION,
    .store_blocks = 14u,
    .checkpoint_block = 0u,
    .buffer_offset = 640u,
    .learning_rate_offset = 144u,
};
