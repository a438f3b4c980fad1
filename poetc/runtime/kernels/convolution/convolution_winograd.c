/* Convolutions of 3 x 3 with strides of one, and their gradients, by Winograd's minimal filters F(2 x 2, 3 x 3).
 *
 * Four results take 16 multiplications instead of 36 (Lavin and Gray 2016, "Fast algorithms for convolutional neural
 * networks"). A tile of 4 x 4 pixels and the 3 x 3 weights are each transformed by additions (and halves of weights)
 * into 16 numbers. These are multiplied, summed over the channels by 16 packed products, and transformed into 2 x 2
 * pixels of the output. The gradient of the weights is the transposed algorithm: tiles of 2 x 2 pixels of gy are
 * transformed, and the products summed over tiles.
 *
 * Layout: SIMD lanes lie along channels, so tiles at edges and of small images cost as much as others. Strips of an
 * image are turned, with zeros around them, on their way in, and the output on its way out.
 * Order of sums: channels (for the gradient of the weights, tiles) in sequence, in blocks as in poetc_gemm.h. Every
 * number is made by the same operations whatever the width of the vectors, the size of the workspace and the number of
 * threads. */
#include "convolution/poetc_winograd.h"

/* How much is done at a time: `tiles` of them, and whether the transformed weights of all outputs are kept for further
 * ones. No tiles: the workspace does not do. */
typedef struct {
    int32_t tiles;
    int keeps;
} plan;

#define KEEPS_FROM 24 /* tiles: with fewer than these, keeping weights would gain nothing */

static plan plan_products(int32_t size, int32_t tiles, int32_t depth, int32_t outputs, int32_t block)
{
    const int32_t each = 16 * (depth + block), weights = 16 * (block * poetc_min(depth, MOST_PIECE) + GAP);
    plan p;
    size -= FIXED;
    p.keeps = 0, p.tiles = (size - weights) / each;
    if (p.tiles < tiles) {
        const int64_t kept = (int64_t)((outputs + block - 1) / block) * 16 * (block * depth + GAP);
        if (size - kept >= (int64_t)KEEPS_FROM * each)
            p.keeps = 1, p.tiles = (int32_t)((size - kept) / each);
    }
    if (p.tiles >= 12)
        p.tiles -= p.tiles % 12; /* whole register blocks */
    p.tiles = size < weights ? 0 : poetc_min(p.tiles, tiles);
    return p;
}

static float *aligned(float *workspace)
{
    return workspace + (ptrdiff_t)((64u - ((uintptr_t)workspace & 63u)) & 63u) / 4;
}

/* A thread makes some tiles or channels, and some outputs, from their transforms on. So threads wait for each other at
 * the end only, and next to nothing goes from one to the other. Transforms that two of them repeat cost less than that
 * would. */
#ifdef POETC_THREADS
#define OWN_FLOATS(call, size) ((call)->workspace ? POETC_THREADS_FLOATS : (size))

/* Shares of two ranges, in whole units, that take the least time: `both` a pair, `first` and `second` an element of
 * each. */
static void split_both(poetc_share share, int32_t firsts, int32_t first_unit, int32_t seconds, int32_t second_unit,
                       int64_t both, int64_t first, int64_t second, poetc_share *of_first, poetc_share *of_second)
{
    int64_t best = INT64_MAX;
    int32_t parts;
    of_first->part = of_first->parts = of_second->part = of_second->parts = 0;
    for (parts = 1; parts <= share.parts; parts++) {
        const int32_t others = share.parts / parts;
        const int64_t a = ((firsts + first_unit - 1) / first_unit + parts - 1) / parts * first_unit;
        const int64_t b = ((seconds + second_unit - 1) / second_unit + others - 1) / others * second_unit;
        const int64_t time = both * a * b + first * a + second * b;
        if (share.parts % parts == 0 && time < best) {
            best = time;
            of_first->parts = parts, of_first->part = share.part % parts;
            of_second->parts = others, of_second->part = share.part / parts;
        }
    }
}
#define SPLIT_BOTH(of_first, of_second, share, firsts, first_unit, seconds, second_unit, both, first, second)          \
    poetc_share of_first, of_second;                                                                                   \
    split_both(share, firsts, first_unit, seconds, second_unit, both, first, second, &(of_first), &(of_second));
#else
#define OWN_FLOATS(call, size) (size)
#define SPLIT_BOTH(of_first, of_second, share, firsts, first_unit, seconds, second_unit, both, first, second)
#endif

/* Costs of transforms, in the time of a multiply-add: of a tile's channel, of a weight, of its gradient
 * (poetc/kernels/convolution_winograd/selection.py). */
#define TILE_TIME 215
#define WEIGHT_TIME 400
#define SUM_TIME 280

/* A convolution at work: tiles [begin, end) for outputs [first, last). Now it has `count` tiles from number `at` on,
 * `here` outputs from number `out` on, `terms` channels from number `piece` on. */
typedef struct {
    convolved c;
    int32_t begin, end, first, last;
    int32_t depth, block, at, count, out, here, piece, terms;
    ptrdiff_t v_plane, m_plane, u_plane;
    float *scratch, *v, *m, *u;
} products;

POETC_APART void transform_pixels(const products *j)
{
    transform_tiles(&j->c.image, NULL, 0, j->at, j->at + j->count, 0, j->c.image.channels, j->scratch, j->v, j->depth,
                    j->v_plane, j->depth, 0);
}

POETC_APART void multiply(const products *j)
{
    int32_t i;
    for (i = 0; i < 16; i++) {
        poetc_gemm_space space;
        poetc_gemm g;
        space.rows = j->scratch + STRIP_FLOATS, space.panels = j->u + i * j->u_plane;
        space.columns = round_up(j->here, COLUMNS), space.depth = j->terms;
        g.rows = j->count, g.columns = round_up(j->here, UNIT), g.depth = j->terms, g.terms = TERMS;
        g.a = j->v + i * j->v_plane + j->piece, g.a_row = j->depth, g.a_k = 1, g.a_block = TERMS;
        g.y = j->m + i * j->m_plane, g.y_row = j->block, g.column = 0, g.segment = j->block, g.segment_step = 0;
        g.row_bias = g.column_bias = NULL, g.accumulate = j->piece > 0;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        poetc_gemm_run(&g, &space);
    }
}

POETC_APART void make_output(const products *j)
{
    const convolved *c = &j->c;
    const ptrdiff_t pixels = (ptrdiff_t)c->height * c->width;
    const int32_t end = j->at + j->count;
    float *strip = j->scratch;
    int32_t tile, channel, i;
    rectangle r;
    for (tile = j->at; tile < end; tile += r.rows * r.columns) {
        r = next_tiles(&c->image, tile, end);
        for (channel = 0; channel < j->here; channel += LANES) {
            const int32_t high = poetc_min(2 * r.rows, c->height - 2 * r.row);
            const int32_t wide = poetc_min(2 * r.columns, c->width - 2 * r.column);
            const int32_t valid = poetc_min(LANES, j->here - channel);
            const float *bias = c->bias ? c->bias + j->out + channel : NULL, *from = strip;
            float *y = c->y + ((ptrdiff_t)r.image * c->outputs + j->out + channel) * pixels;
            y += (ptrdiff_t)2 * r.row * c->width + 2 * r.column;
            transform_products(j->m + (ptrdiff_t)(tile - j->at) * j->block + channel, j->block, j->m_plane, &r,
                               c->height, c->width, strip);
            if (wide == c->width)
                turn_out(from, high * wide, y, pixels, valid, bias);
            else
                for (i = 0; i < high; i++, from += wide * LANES, y += c->width)
                    turn_out(from, wide, y, pixels, valid, bias);
        }
    }
}

/* ints: those of all convolutions, the floats of the workspace, the outputs at a time.
 * Of the forward pass or, turned, of the gradient of the input. Apart, so that variables of one use leave the stack. */
POETC_APART plan prepare(const poetc_call *call, int turned, products *j)
{
    const convolution d = describe(call);
    const int32_t size = OWN_FLOATS(call, call->ints[17]), block = call->ints[18], taps = d.channels * 9;
    tiled *image = &j->c.image;
    float *workspace = POETC_WORKSPACE(call, d.has_bias ? 4 : 3);
    plan p;
    image->from = poetc_in(call, 0), image->batch = d.batch, image->channels = turned ? d.outputs : d.channels;
    image->height = turned ? d.output_height : d.height, image->width = turned ? d.output_width : d.width;
    image->top = turned ? 2 - d.pad_top : d.pad_top, image->left = turned ? 2 - d.pad_left : d.pad_left;
    j->c.outputs = turned ? d.channels : d.outputs;
    j->c.height = turned ? d.height : d.output_height, j->c.width = turned ? d.width : d.output_width;
    image->rows = (j->c.height + 1) / 2, image->columns = (j->c.width + 1) / 2;
    j->depth = round_up(image->channels, WIDTH), j->block = block;
    {
        const int32_t tiles = image->batch * image->rows * image->columns;
        SPLIT_BOTH(of_tiles, of_outputs, call->share, tiles, image->columns, j->c.outputs, block,
                   16 * j->depth + TILE_TIME, TILE_TIME * j->depth, WEIGHT_TIME * j->depth)
        j->begin = POETC_BEGIN(of_tiles, tiles, image->columns), j->end = POETC_END(of_tiles, tiles, image->columns);
        j->first = POETC_BEGIN(of_outputs, j->c.outputs, block), j->last = POETC_END(of_outputs, j->c.outputs, block);
    }
    p = plan_products(size, j->end - j->begin, j->depth, j->last - j->first, block);
    j->c.w = poetc_in(call, 1), j->c.w_end = j->c.w + (ptrdiff_t)d.outputs * taps, j->c.turned = turned;
    j->c.lane = turned ? 9 : taps, j->c.depth = turned ? taps : 9;
    j->c.bias = d.has_bias ? poetc_in(call, 2) : NULL, j->c.y = poetc_out(call, d.has_bias ? 3 : 2);
    j->v_plane = (ptrdiff_t)p.tiles * j->depth + GAP, j->m_plane = (ptrdiff_t)p.tiles * block + GAP;
    j->u_plane = (ptrdiff_t)block * (p.keeps ? j->depth : poetc_min(j->depth, PIECE)) + GAP;
    j->scratch = aligned(workspace), j->v = j->scratch + SCRATCH_FLOATS, j->m = j->v + 16 * j->v_plane;
    j->u = j->m + 16 * j->m_plane;
    if (p.tiles > 0)
        workspace[size - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    return p;
}

static int convolve(const poetc_call *call, int turned)
{
    products j;
    const plan p = prepare(call, turned, &j);
    if (j.begin == j.end || j.first == j.last)
        return POETC_OK;
    if (p.tiles <= 0)
        return POETC_EINVAL;
    for (j.at = j.begin; j.at < j.end; j.at += p.tiles) {
        j.count = poetc_min(p.tiles, j.end - j.at);
        transform_pixels(&j);
        for (j.out = j.first; j.out < j.last; j.out += j.block) {
            j.here = poetc_min(j.block, j.last - j.out);
            for (j.piece = 0; j.piece < j.c.image.channels; j.piece += PIECE) {
                j.terms = poetc_min(PIECE, j.c.image.channels - j.piece);
                if (p.keeps)
                    j.u = j.m + 16 * j.m_plane + (ptrdiff_t)((j.out - j.first) / j.block) * 16 * j.u_plane +
                          (ptrdiff_t)j.piece * j.block;
                if (!p.keeps || j.at == j.begin)
                    transform_weights(&j.c, j.piece, j.terms, j.out, j.here, j.u, j.u_plane);
                multiply(&j);
            }
            make_output(&j);
        }
    }
    return POETC_OK;
}

#ifdef POETC_THREADS
/* With less a thread would transform weights for a register block or two. */
static int32_t floats_of_products(int32_t channels, int32_t block)
{
    const int32_t depth = round_up(channels, WIDTH);
    return FIXED + 16 * (block * poetc_min(depth, MOST_PIECE) + GAP) + 24 * 16 * (depth + block);
}
#endif

/* x, w, [b] -> y */
int poetc_op_conv_winograd(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_winograd, call, CONVOLUTION_WORK(describe(call)),
                   floats_of_products(call->ints[1], call->ints[18]));
    return convolve(call, 0);
}

/* gy, w, [b] -> gx (and the transposed convolution) */
int poetc_op_conv_grad_input_winograd(const poetc_call *call)
{
    POETC_THREADED(poetc_op_conv_grad_input_winograd, call, CONVOLUTION_WORK(describe(call)),
                   floats_of_products(call->ints[4], call->ints[18]));
    return convolve(call, 1);
}

/* Tiles at a time of the gradient of the weights: whole blocks of terms. */
static int32_t plan_tiles(int32_t size, int32_t tiles, int32_t columns, int32_t block)
{
    const int32_t fit = (size - FIXED - 16 * (block * columns + GAP)) / (16 * (columns + block));
    if (poetc_min(fit, MOST_SUMS) >= tiles)
        return tiles;
    return poetc_min(fit, MOST_SUMS) / TERMS * TERMS;
}

/* The gradient at work, channels [begin, end) of outputs [first, last). It has `count` tiles from number `at` on,
 * `here` outputs from number `out` on, `terms` channels from number `piece` on. */
typedef struct {
    tiled image, gy;
    int32_t begin, end, first, last;
    int32_t tiles, columns, block, at, count, out, here, piece, terms;
    ptrdiff_t v_plane, y_plane, z_plane;
    float *scratch, *v, *y, *z;
} sums;

/* Gradients of outputs and, where they are others, pixels. `norm`: the first operand of the operators on these before,
 * or 0. */
POETC_APART void transform_both(const sums *j, int pixels, const poetc_call *call, unsigned norm)
{
    const int32_t end = j->at + j->count;
    normal n;
    if (norm && pixels) {
        n.norm = poetc_norm_of(call, norm);
        n.centre = j->scratch + STRIP_FLOATS, n.factor = n.centre + MOST_PIECE,
        n.shift = n.factor + MOST_PIECE; /* until products */
        prepare_normal(&n, j->piece, j->terms);
    }
    if (pixels)
        transform_tiles(&j->image, norm ? &n : NULL, 0, j->at, end, j->piece, j->piece + j->terms, j->scratch, j->v,
                        COLUMNS, j->v_plane, COLUMNS, (ptrdiff_t)j->count * COLUMNS);
    transform_tiles(&j->gy, NULL, 1, j->at, end, j->out, j->out + j->here, j->scratch, j->y, j->block, j->y_plane,
                    j->block, 0);
}

POETC_APART void multiply_and_add(const sums *j)
{
    int32_t i;
    for (i = 0; i < 16; i++) {
        poetc_gemm_space space;
        poetc_gemm g;
        space.rows = j->scratch + STRIP_FLOATS, space.panels = j->v + i * j->v_plane;
        space.columns = j->columns, space.depth = j->count;
        g.rows = j->here, g.columns = round_up(j->terms, UNIT), g.depth = j->count, g.terms = TERMS;
        g.a = j->y + i * j->y_plane, g.a_row = 1, g.a_k = j->block, g.a_block = (ptrdiff_t)TERMS * j->block;
        g.y = j->z + i * j->z_plane, g.y_row = j->columns, g.column = 0, g.segment = j->columns, g.segment_step = 0;
        g.row_bias = g.column_bias = NULL, g.accumulate = j->at > 0;
        POETC_NOTHING_AHEAD(g);
        POETC_ALL_ROWS(g);
        poetc_gemm_run(&g, &space);
    }
}

/* Tiles at a time, 0 where the workspace is too small; apart, so that variables of one use leave the stack. */
POETC_APART int32_t prepare_sums(const poetc_call *call, const float *x, const float *gy, float *workspace,
                                 int32_t descends, sums *j)
{
    const convolution d = describe(call);
    const int32_t size = OWN_FLOATS(call, call->ints[17]), block = call->ints[18];
    const tiled image = {x,
                         d.batch,
                         d.channels,
                         d.height,
                         d.width,
                         d.pad_top,
                         d.pad_left,
                         (d.output_height + 1) / 2,
                         (d.output_width + 1) / 2};
    const tiled output = {gy, d.batch, d.outputs, d.output_height, d.output_width, 0, 0, image.rows, image.columns};
    const int32_t tiles = d.batch * image.rows * image.columns;
    int32_t at_once;
    (void)descends;
    /* Weights that move: as the gradient of the input read them. */
    SPLIT_BOTH(of_channels, of_outputs, call->share, d.channels, 2 * WIDTH, d.outputs, WIDTH, 16 * tiles + SUM_TIME,
               TILE_TIME * tiles + descends, TILE_TIME * tiles)
    j->begin = POETC_BEGIN(of_channels, d.channels, 2 * WIDTH), j->end = POETC_END(of_channels, d.channels, 2 * WIDTH);
    j->first = POETC_BEGIN(of_outputs, d.outputs, WIDTH), j->last = POETC_END(of_outputs, d.outputs, WIDTH);
    j->image = image, j->gy = output, j->tiles = tiles, j->block = block;
    j->columns = poetc_min(round_up(j->end - j->begin, 2 * WIDTH), MOST_PIECE);
    at_once = plan_tiles(size, tiles, j->columns, block);
    j->v_plane = (ptrdiff_t)at_once * j->columns + GAP, j->y_plane = (ptrdiff_t)at_once * block + GAP;
    j->z_plane = (ptrdiff_t)block * j->columns + GAP;
    j->scratch = aligned(workspace), j->v = j->scratch + SCRATCH_FLOATS, j->y = j->v + 16 * j->v_plane;
    j->z = j->y + 16 * j->y_plane;
    if (at_once > 0)
        workspace[size - 1] = 0.0f; /* so that the memory that is touched does not depend on the sizes */
    return at_once;
}

/* The gradient of the weights; or, if they descend, the weights moved by it. Operands: [w], x, gy, [mean, var, scale,
 * bias], [lr]. */
static int grad_weight(const poetc_call *call, unsigned descends, unsigned norm)
{
    const unsigned rate = 2 + descends + (norm ? 4 : 0), result = rate + descends;
    sums j;
    const int32_t at_once = prepare_sums(call, poetc_in(call, descends), poetc_in(call, 1 + descends),
                                         POETC_WORKSPACE(call, result + 1), (int32_t)descends, &j);
    if (j.begin == j.end || j.first == j.last)
        return POETC_OK;
    if (at_once <= 0)
        return POETC_EINVAL;
    for (j.piece = j.begin; j.piece < j.end; j.piece += j.columns) {
        j.terms = poetc_min(j.columns, j.end - j.piece);
        for (j.out = j.first; j.out < j.last; j.out += j.block) {
            float *to = (float *)poetc_out(call, result) + ((ptrdiff_t)j.out * j.image.channels + j.piece) * 9;
            int32_t i;
            j.here = poetc_min(j.block, j.last - j.out);
            for (j.at = 0; j.at < j.tiles; j.at += at_once) {
                j.count = poetc_min(at_once, j.tiles - j.at);
                transform_both(&j, j.out == j.first || at_once < j.tiles, call, norm);
                multiply_and_add(&j);
            }
            for (i = 0; i < j.here; i++, to += (ptrdiff_t)j.image.channels * 9)
                transform_sums(j.z + (ptrdiff_t)i * j.columns, j.z_plane, j.terms, to,
                               descends ? poetc_in(call, rate) : NULL, j.scratch);
        }
    }
    return POETC_OK;
}

#ifdef POETC_THREADS
static int32_t floats_of_sums(const poetc_call *call)
{
    const int32_t block = call->ints[18];
    return FIXED + 16 * (block * MOST_PIECE + GAP) + 16 * TERMS * (MOST_PIECE + block);
}
#endif

#define WINOGRAD_GRAD_WEIGHT(name, descends, norm)                                                                     \
    int poetc_op_conv_grad_weight_##name(const poetc_call *call)                                                       \
    {                                                                                                                  \
        POETC_THREADED(poetc_op_conv_grad_weight_##name, call, CONVOLUTION_WORK(describe(call)), floats_of_sums(call)); \
        return grad_weight(call, descends, norm);                                                                      \
    }

/* x, gy -> gw */
WINOGRAD_GRAD_WEIGHT(winograd, 0, 0)
/* x, gy, mean, var, scale, bias -> gw */
WINOGRAD_GRAD_WEIGHT(norm_winograd, 0, 2)
/* w, x, gy, lr -> w */
WINOGRAD_GRAD_WEIGHT(sgd_winograd, 1, 0)
/* w, x, gy, mean, var, scale, bias, lr -> w */
WINOGRAD_GRAD_WEIGHT(sgd_norm_winograd, 1, 3)
