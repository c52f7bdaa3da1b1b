// Bindings of a drafter and its heads.
#include "bindings.h"

#include <algorithm>

#include "drafter.h"

using namespace slimtier;

using Matrix = std::shared_ptr<Packed>;

static std::shared_ptr<DraftHead> make_head(DraftHead::Parts parts) {
  require(!parts.down || parts.down->n == parts.rows->k, "the head's two factors do not fit each other");
  nb::gil_scoped_release release;
  return std::make_shared<DraftHead>(std::move(parts));
}

static std::shared_ptr<DraftHead> full_head(Matrix weights) { return make_head({nullptr, weights, {}, nullptr, 0, weights->n}); }

static std::shared_ptr<DraftHead> slim_head(Matrix down, Matrix up) { return make_head({down, up, {}, nullptr, 0, up->n}); }

static std::shared_ptr<DraftHead> trimmed_head(Matrix weights, ConstIds ids, int64_t vocab) {
  require(int64_t(ids.size()) == weights->n, "one target id a row");
  std::vector<bool> seen(size_t(vocab), false);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids.data()[i];
    require(id >= 0 && id < vocab && !seen[size_t(id)], "a target id is outside the vocabulary or appears twice");
    seen[size_t(id)] = true;
  }
  return make_head({nullptr, weights, {ids.data(), ids.data() + ids.size()}, nullptr, 0, vocab});
}

static std::shared_ptr<DraftHead> routed_head(Matrix down, Matrix up, Matrix exact, int64_t candidates) {
  require(exact->n == up->n && exact->k == down->k, "the exact rows do not fit the low-rank factors");
  require(candidates >= 1, "at least one candidate");
  return make_head({down, up, {}, exact, candidates, up->n});
}

static int64_t rows_of(const DraftHead& head, const ConstFloats& hidden) {
  require(hidden.ndim() == 2 && int64_t(hidden.shape(1)) == head.width(), "hidden must be [m, width]");
  return int64_t(hidden.shape(0));
}

static void head_argmax(DraftHead& head, Pool& pool, ConstFloats hidden, Ids ids, Floats values, std::optional<Floats> probabilities) {
  const int64_t m = rows_of(head, hidden);
  require(int64_t(ids.size()) == m && int64_t(values.size()) == m && (!probabilities || int64_t(probabilities->size()) == m),
          "ids, values and probabilities must be [m]");
  nb::gil_scoped_release release;
  head.begin(m, pool.size(), probabilities.has_value());
  pool.run([&](Lane& lane) { head.argmax(lane, hidden.data()); });
  for (int64_t i = 0; i < m; ++i) {
    const Winner& winner = head.winners()[size_t(i)];
    ids.data()[i] = winner.id;
    values.data()[i] = winner.value;
    if (probabilities) probabilities->data()[i] = winner.probability;
  }
}

static void head_logits(DraftHead& head, Pool& pool, ConstFloats hidden, Floats out) {
  const int64_t m = rows_of(head, hidden);
  require(int64_t(out.size()) == m * head.vocab(), "out must be [m, vocab]");
  nb::gil_scoped_release release;
  head.begin(m, pool.size(), false);
  pool.run([&](Lane& lane) { head.logits(lane, hidden.data(), out.data()); });
}

static std::shared_ptr<Drafter> make_drafter(nb::dict shape, Matrix embedding, std::optional<Matrix> fuse, nb::dict norms, RopeArrays rope,
                                             nb::list layers, std::shared_ptr<DraftHead> head, std::shared_ptr<Pool> pool) {
  const int64_t width = nb::cast<int64_t>(shape["hidden"]);
  Drafter::Parts p;
  p.network = make_network(shape, {rope}, layers, 2 * width);
  p.embedding = embedding;
  p.fuse = fuse.value_or(nullptr);
  p.head = head;
  p.norm_before_residual = nb::cast<bool>(shape["norm_before_residual"]);
  p.norm_output = nb::cast<bool>(shape["norm_output"]);
  p.hidden_norm = vector_of(nb::cast<ConstFloats>(norms["hidden"]));
  p.final_norm = vector_of(nb::cast<ConstFloats>(norms["final"]));
  if (const auto features = nb::cast<std::optional<ConstFloats>>(norms["features"])) {
    require(p.fuse && features->ndim() == 2 && int64_t(features->size()) == p.fuse->k, "norms of features must be [pieces, features / pieces]");
    p.norm_pieces = int64_t(features->shape(0));
    p.feature_norm = vector_of(features);
  }
  require(embedding->k == width && (!p.fuse || p.fuse->n == width) && head->width() == width, "embedding, fuse or head does not fit the drafter");
  require(int64_t(p.hidden_norm.size()) == width && int64_t(p.final_norm.size()) == width, "hidden and final norms must be [hidden]");
  return std::make_shared<Drafter>(std::move(p), pool);
}

static Drafter::Input make_input(const Drafter& d, const ConstIds& tokens, const ConstFloats& inputs, bool fused,
                                 const std::vector<KvStore*>& stores, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts) {
  const Drafter::Parts& p = d.parts();
  const int64_t width = fused ? d.feature_width() : p.network.shape.hidden;
  require(int64_t(inputs.size()) == int64_t(tokens.size()) * width, "inputs must be [N, features], or [N, hidden] if they are not fused");
  return {tokens.data(), inputs.data(), fused, make_runs(p.network, tokens, p.embedding->n, stores, starts, counts)};
}

static void forward(Drafter& d, ConstIds tokens, ConstFloats inputs, bool fused, const std::vector<KvStore*>& stores,
                    const std::vector<int64_t>& starts, const std::vector<int64_t>& counts, Floats hidden, Floats state) {
  const Drafter::Input input = make_input(d, tokens, inputs, fused, stores, starts, counts);
  const size_t size = tokens.size() * size_t(d.parts().network.shape.hidden);
  require(hidden.size() == size && state.size() == size, "hidden and state must be [N, hidden]");
  nb::gil_scoped_release release;
  d.forward(input, hidden.data(), state.data());
}

static void draft(Drafter& d, ConstIds tokens, ConstFloats features, const std::vector<KvStore*>& stores, const std::vector<int64_t>& starts,
                  const std::vector<int64_t>& counts, const std::vector<int64_t>& steps, float stop_below, Ids ids,
                  std::optional<Floats> probabilities, float go_on) {
  const Drafter::Input input = make_input(d, tokens, features, true, stores, starts, counts);
  require(steps.size() == stores.size(), "one number of steps a row");
  const int64_t rows = int64_t(steps.size()), width = rows == 0 ? 0 : int64_t(ids.size()) / rows;
  require(int64_t(ids.size()) == rows * width && (!probabilities || probabilities->size() == ids.size()),
          "ids and probabilities must be [rows, most steps]");
  std::vector<int64_t> run_steps, row_of_run;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t count = counts[size_t(r)], wanted = steps[size_t(r)], end = starts[size_t(r)] + count + wanted - 1;
    require(wanted >= 0 && wanted <= width, "more steps than ids has room for");
    require(wanted == 0 || count > 0, "a row drafts from a new token");
    require(wanted == 0 || end <= std::min(stores[size_t(r)]->capacity(), d.parts().network.ropes[0].positions),
            "a draft is longer than its cache or the model's positions");
    if (count == 0) continue;
    run_steps.push_back(wanted);
    row_of_run.push_back(r);
  }
  Drafter::Chains chains{width, std::vector<int32_t>(run_steps.size() * size_t(width), -1), Vector(run_steps.size() * size_t(width))};
  bool finite;
  {
    nb::gil_scoped_release release;
    finite = d.draft(input, run_steps, {stop_below, go_on}, probabilities.has_value(), chains);
  }
  if (!finite) {
    PyErr_SetString(PyExc_FloatingPointError, "the drafter's scores are not finite; check its weights and the features");
    throw nb::python_error();
  }
  std::fill(ids.data(), ids.data() + ids.size(), -1);
  if (probabilities) std::fill(probabilities->data(), probabilities->data() + ids.size(), 0.0f);
  for (size_t i = 0; i < row_of_run.size(); ++i) {
    const auto from = std::ptrdiff_t(i) * width, to = row_of_run[i] * width;
    std::copy_n(chains.ids.begin() + from, width, ids.data() + to);
    if (probabilities) std::copy_n(chains.probabilities.begin() + from, width, probabilities->data() + to);
  }
}

void bind_drafter(nb::module_& m) {
  nb::class_<DraftHead>(m, "DraftHead")
      .def_static("full", &full_head, nb::arg("weights"))
      .def_static("slim", &slim_head, nb::arg("down"), nb::arg("up"))
      .def_static("trimmed", &trimmed_head, nb::arg("weights"), nb::arg("ids"), nb::arg("vocab"))
      .def_static("routed", &routed_head, nb::arg("down"), nb::arg("up"), nb::arg("exact"), nb::arg("candidates"))
      .def_prop_ro("width", &DraftHead::width)
      .def_prop_ro("vocab", &DraftHead::vocab)
      .def_prop_ro("nbytes", &DraftHead::bytes)
      .def("argmax", &head_argmax, nb::arg("pool"), nb::arg("hidden"), nb::arg("ids"), nb::arg("values"), nb::arg("probabilities").none() = nb::none())
      .def("logits", &head_logits, nb::arg("pool"), nb::arg("hidden"), nb::arg("out"));

  nb::class_<Drafter>(m, "Drafter")
      .def(nb::new_(&make_drafter), nb::arg("shape"), nb::arg("embedding"), nb::arg("fuse").none(), nb::arg("norms"), nb::arg("rope"),
           nb::arg("layers"), nb::arg("head"), nb::arg("pool"))
      .def_prop_ro("head", [](const Drafter& d) { return d.parts().head; })
      .def("forward", &forward)
      .def("draft", &draft, nb::arg("tokens"), nb::arg("features"), nb::arg("stores"), nb::arg("starts"), nb::arg("counts"),
           nb::arg("steps"), nb::arg("stop_below"), nb::arg("ids"), nb::arg("probabilities").none() = nb::none(),
           nb::arg("go_on") = 0.0f)
      .def("timing", [](const Drafter& d) { return timing_dict(d.timing()); })
      .def("reset_timing", &Drafter::reset_timing);
}
