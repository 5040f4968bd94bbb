"""Realistic bugs: file, the text that is right, the text that is wrong, and the tests that should see it."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One bug: ``old`` stands exactly once in ``file``; ``tests`` are separated by spaces, below ``tests/``."""

    file: str
    old: str
    new: str
    tests: str


LIBRARY, MAPS = "structured_init", "structured_init/analysis/statistics.py"
# Folders of files, and of their tests.
OF_RESULTS = "comparison/runs comparison/contrasts comparison/test_intervals.py comparison/test_tables.py"
DATA, RUN_FILES, CONTRASTS = "lightning_modules/data", "comparison/runs", "comparison/contrasts"
TASKS, NETWORKS = "lightning_modules/tasks", "lightning_modules/networks"
PROMISES = "contract/test_promises.py"
OF_MAPS = "structured_init/analysis/test_statistics.py"
CKA, OF_CKA = "structured_init/analysis/cka.py", "structured_init/analysis/test_cka.py"
MIMETIC, OF_MIMETIC = "structured_init/attention/mimetic.py", "structured_init/test_mimetic.py"
STATES, OF_STATES = "structured_init/ssm/mimetic.py", "structured_init/test_mimetic_state_space.py"
FILTERS, OF_FILTERS = "structured_init/conv/spatial_filters.py", "structured_init/test_spatial_filters.py"
SCAN, OF_SCAN = "structured_init/ssm/scan.py", "structured_init/test_scan.py"
INIT, OF_INIT = "callbacks/init.py", "callbacks/test_init_callback.py"
MASKS, OF_MASKS = "lightning_modules/data/text/blocks.py", "lightning_modules/data/test_text_data.py"
LOSS, OF_LOSS = "lightning_modules/tasks/language/metrics.py", "lightning_modules/tasks/language/test_loss.py"
MIX, OF_MIX = "lightning_modules/tasks/image.py", "lightning_modules/tasks/image/test_mixing.py"
PROOF = "lightning_modules/tasks/certified/certificate.py"
OF_PROOF = "lightning_modules/tasks/certified/test_certified_metrics.py"
WATCHING = "structured_init/hosts/watching"
OF_WATCH = "structured_init/hosts/watching"
PAIRED, OF_PAIRED = "comparison/intervals.py", "comparison/test_intervals.py"
TARGETS, OF_TARGETS = (
    "comparison/contrasts/targets.py",
    "comparison/test_tables.py comparison/say/test_report.py",
)
CLOCK, OF_CLOCK = "structured_init/util/arguments.py", "comparison/train/test_time_limit.py"
REFEREE, OF_REFEREE = "comparison/verdicts/referee.py", "comparison/verdicts/test_referee.py"
LOOKS, OF_LOOKS = "comparison/contrasts/contrasts.py", "comparison/contrasts/test_looks.py"
RUNS, OF_RUNS = "comparison/runs/folder.py", "comparison/plan/test_learning_rates.py comparison/train/test_run.py"
EFFECTS, OF_EFFECTS = (
    "comparison/contrasts/contrasts.py",
    "comparison/contrasts/test_success.py comparison/contrasts/test_diverged.py",
)
OF_POSITIONS = "structured_init/hosts/test_position_rows.py structured_init/hosts/test_position_kinds.py"
OF_SHARED = "structured_init/hosts/watching/test_roles.py"
OPTIM, OF_OPTIM = "lightning_modules/tasks/optim.py", "lightning_modules/tasks/test_optim.py"
TAPS, OF_CAPTURE = "structured_init/hosts/watching/taps.py", "structured_init/analysis"
OF_SEEN = "structured_init/hosts/test_positions_seen.py"
MUTATIONS = [
    # The overlay, the writer, the draws, the report
    Mutation(
        f"{LIBRARY}/util/draws.py",
        "\\0{part}",
        "",
        f"structured_init/test_draws.py structured_init/test_initialize.py {PROMISES}",
    ),
    Mutation(f"{LIBRARY}/util/draws.py", "{self.seed}\\0", "", f"structured_init/test_draws.py {PROMISES}"),
    Mutation(
        f"{LIBRARY}/weights.py",
        "/ count), math.sqrt(square",
        "/ (count - 1)), math.sqrt(square",
        f"structured_init/test_report.py {PROMISES}",
    ),
    Mutation(
        f"{LIBRARY}/util/names.py",
        "if part not in UNMISTAKABLE and part != child:",
        "if part not in UNMISTAKABLE:",
        f"structured_init/test_names.py {PROMISES}",
    ),
    Mutation(
        f"{LIBRARY}/weights.py",
        "update = self.updates.get(id(tensor))",
        "update = None",
        f"structured_init/test_initialize.py {PROMISES}",
    ),
    Mutation(
        f"{LIBRARY}/weights.py", "        self._pending.clear()", "        pass", "structured_init/test_initialize.py"
    ),
    Mutation(
        f"{LIBRARY}/writer.py",
        "        except BaseException:",
        "        except KeyboardInterrupt:",
        f"structured_init/test_failure.py {PROMISES}",
    ),
    Mutation(
        f"{LIBRARY}/writer.py",
        "            target.requires_grad_(trainable)\n        for",
        "            pass\n        for",
        f"structured_init/test_failure.py {PROMISES}",
    ),
    Mutation(
        f"{LIBRARY}/writer.py",
        "self._file.seek(offset)",
        "self._file.seek(0)",
        f"structured_init/test_failure.py {PROMISES}",
    ),
    Mutation(f"{LIBRARY}/writer.py", "if tensor.is_meta:", "if False:", "structured_init/test_initialize.py"),
    Mutation(
        f"{LIBRARY}/writer.py",
        "torch.promote_types(value.dtype, torch.float32)",
        "value.dtype",
        f"structured_init/test_initialize.py structured_init/test_failure.py {PROMISES}",
    ),
    Mutation(
        f"{LIBRARY}/initializer.py",
        "Weights(model, None if dry_run else writer, batch, under_way)",
        "Weights(model, writer, batch, under_way)",
        PROMISES,
    ),
    Mutation(
        f"{LIBRARY}/initializer.py",
        "        if not dry_run:\n",
        "        if True:\n",
        PROMISES,
    ),
    Mutation(
        f"{LIBRARY}/initializer.py",
        "if p.requires_grad != trainable]",
        "]",
        PROMISES,
    ),
    Mutation(
        f"{LIBRARY}/util/files.py",
        "temporary.replace(final)",
        "temporary.read_bytes()",
        "structured_init/test_files_and_errors.py",
    ),
    # Initializers
    Mutation(MIMETIC, "mul_(alpha / math.sqrt(dim))", "mul_(alpha / dim)", OF_MIMETIC),
    Mutation(MIMETIC, "math.sqrt(3 / dim)", "math.sqrt(1 / dim)", OF_MIMETIC),
    Mutation(MIMETIC, "vo_sign: Sign = -1", "vo_sign: Sign = 1", OF_MIMETIC),
    Mutation(
        MIMETIC,
        "return left, right.mT\n\n\ndef split_identity",
        "return left, right\n\n\ndef split_identity",
        OF_MIMETIC,
    ),
    Mutation(MIMETIC, "left, right = left.mT, right.mT", "pass", OF_MIMETIC),
    Mutation(
        f"{LIBRARY}/attention/products.py",
        "(outputs / group).repeat",
        "outputs.repeat",
        "structured_init/hosts/test_transformers.py structured_init/test_mimetic_language.py",
    ),
    Mutation(
        f"{LIBRARY}/attention/products.py",
        "left, right = left @ turn, right @ turn",
        "left = left @ turn",
        "structured_init/test_mimetic_language.py structured_init/hosts/test_transformers.py",
    ),
    Mutation(
        f"{LIBRARY}/attention/positions.py",
        "return self.gain * STD * torch",
        "return STD * torch",
        "structured_init/test_positions.py",
    ),
    Mutation(
        f"{LIBRARY}/attention/products.py",
        "again = generator.clone_state()",
        "again = generator",
        "structured_init/test_grouped_queries.py structured_init/hosts/test_transformers.py",
    ),
    Mutation(
        f"{LIBRARY}/util/linalg.py",
        "basis * np.sign(triangle.diagonal())",
        "basis",
        "structured_init/test_linalg.py structured_init/test_delta_orthogonal.py",
    ),
    Mutation(STATES, "torch.full_like(A_log, -c)", "torch.full_like(A_log, c)", OF_STATES),
    Mutation(STATES, "return step + math.log(-math.expm1(-step))", "return math.log(step)", OF_STATES),
    Mutation(STATES, "taps[:, -1] = 1", "taps[:, 0] = 1", OF_STATES),
    Mutation(STATES, "site.C = (site.C + site.B) / 2", "site.C = site.C + site.B", OF_STATES),
    Mutation(FILTERS, "math.sqrt(3 * ENERGY", "math.sqrt(ENERGY", OF_FILTERS),
    Mutation(FILTERS, ".square() / 2)", ".square())", OF_FILTERS),
    Mutation(
        f"{LIBRARY}/conv/delta_orthogonal.py",
        "(size - 1) // 2",
        "size // 2",
        "structured_init/test_delta_orthogonal.py",
    ),
    Mutation(
        f"{LIBRARY}/transfer/weight_selection.py",
        "if teacher % student == 0:",
        "if True:",
        "structured_init/test_weight_selection.py",
    ),
    # Layers and scans
    Mutation(SCAN, "later = adjoint[0] * decay[0]", "later = adjoint[0]", OF_SCAN),
    Mutation(SCAN, "state = states[-1].clone()", "state = states[0].clone()", OF_SCAN),
    Mutation(
        f"{LIBRARY}/layers/sequence_pooling.py",
        "masked_fill(~mask",
        "masked_fill(mask",
        "structured_init/layers/test_sequence_pooling.py",
    ),
    Mutation(
        f"{LIBRARY}/layers/sorting.py",
        "[torch.maximum(first, second), torch.minimum(first, second)]",
        "[torch.minimum(first, second), torch.maximum(first, second)]",
        "structured_init/layers/test_sorting.py",
    ),
    # Attention that is watched
    Mutation(
        f"{WATCHING}/heads.py",
        "return query.gather(1, order), key.gather(1, order), order",
        "return query, key, order",
        OF_WATCH,
    ),
    Mutation(
        f"{WATCHING}/assemble.py",
        "order = in_groups(query, key, value)",
        "order = list(range(len(query)))",
        OF_WATCH,
    ),
    Mutation(f"{WATCHING}/discover.py", "if not proof.error <= tolerance:", "if False:", OF_WATCH),
    Mutation(f"{WATCHING}/discover.py", "default=0) > SAMPLES", "default=0) > 0", OF_WATCH),
    Mutation(f"{WATCHING}/evidence.py", "is not None and (found > STILL).any():", "is not None:", OF_WATCH),
    Mutation(f"{WATCHING}/tables.py", "if isinstance(source, Product):", "if False:", OF_SEEN),
    Mutation(f"{WATCHING}/tables.py", "-3 if across or whole else -2", "-3 if across else -2", OF_SEEN),
    Mutation(f"{WATCHING}/forward_pass.py", "**dict.fromkeys(FILLS, WatchMode._fill),", "", OF_WATCH),
    Mutation(f"{WATCHING}/records.py", "if outer == 1:  # samples behind", "if False:  # samples behind", OF_CAPTURE),
    Mutation(
        f"{WATCHING}/forward_pass.py",
        "setattr(record, part, getattr(record, part).clone())",
        "pass",
        OF_WATCH,
    ),
    Mutation(
        f"{WATCHING}/operations.py",
        "if isinstance(source, Sum) and source is not other:",
        "if False:",
        OF_WATCH,
    ),
    Mutation(
        f"{LIBRARY}/hosts/watched.py", "if not worst(logits, outputs) <= tolerance:", "if logits > tolerance:", OF_WATCH
    ),
    # Analysis
    Mutation(MAPS, "(maps)[..., prefix_tokens:, prefix_tokens:]", "(maps)[..., prefix_tokens:, :]", OF_MAPS),
    Mutation(MAPS, "rows = -torch.special", "rows = torch.special", OF_MAPS),
    Mutation(MAPS, "offsets[..., 1] + columns - 1\n\n", "offsets[..., 1] + columns\n\n", OF_MAPS),
    Mutation(MAPS, "places[None, :, :] - places[:, None, :]", "places[:, None, :] - places[None, :, :]", OF_MAPS),
    Mutation(MAPS, ").to(patches.device) > radius", ") > radius", "contract/test_devices.py"),
    Mutation(CKA, "rows = 2 * (row_sums", "rows = (row_sums", OF_CKA),
    Mutation(
        f"{LIBRARY}/undisturbed.py",
        '            stack.callback(setattr, module, "training", module.training)',
        "            pass",
        "structured_init/analysis/test_capture.py structured_init/analysis/test_representations.py",
    ),
    Mutation(
        f"{LIBRARY}/undisturbed.py",
        "        random.setstate(python)",
        "        pass",
        "structured_init/analysis/test_capture.py structured_init/analysis/test_representations.py",
    ),
    # Callbacks
    Mutation(INIT, "if trainer.ckpt_path is not None and not hasattr", "if not hasattr", OF_INIT),
    Mutation(INIT, "checkpoint[ACCOUNT] = getattr(pl_module, ACCOUNT, {})", "checkpoint[ACCOUNT] = {}", OF_INIT),
    Mutation(INIT, 'os.environ.get("PL_GLOBAL_SEED", 0)', '"0"', OF_INIT),
    Mutation(
        INIT,
        "chain(average.module.parameters(), average.module.buffers())",
        "chain(pl_module.parameters(), pl_module.buffers())",
        OF_INIT,
    ),
    Mutation(
        "callbacks/before_after.py",
        "trainer.global_step == 0 and not resumed",
        "not resumed",
        "callbacks/test_before_after.py callbacks/test_attention_map.py",
    ),
    # Tasks and data
    Mutation(MASKS, "torch.isin(ids, torch.tensor(self.masking.tokenizer.all_special_ids))", "ids < 0", OF_MASKS),
    Mutation(
        "lightning_modules/data/text/blocks.py",
        "begins | padding",
        "padding",
        "lightning_modules/data/test_text_packing.py",
    ),
    Mutation(
        "lightning_modules/data/labelled.py",
        "np.argsort(counts - exact",
        "np.argsort(exact - counts",
        "lightning_modules/data/test_image_data.py",
    ),
    Mutation(
        LOSS,
        "F.pad(values[:, 1:], (0, 1)",
        "F.pad(values[:, :-1], (1, 0)",
        f"{OF_LOSS} lightning_modules/tasks/language/test_model.py",
    ),
    Mutation(MIX, "return mixed, 1 - (bottom", "return mixed, (bottom", OF_MIX),
    Mutation(MIX, "labels.roll(1, 0), label_smoothing", "labels.roll(-1, 0), label_smoothing", OF_MIX),
    Mutation(PROOF, "others.amax(1)", "others.mean(1)", OF_PROOF),
    Mutation(
        PROOF,
        "math.sqrt(2) * epsilon * lipschitz",
        "math.sqrt(2) * epsilon",
        f"{OF_PROOF} lightning_modules/tasks/certified/test_certified_soundness.py",
    ),
    # The comparison
    Mutation(PAIRED, "n - 1, 0.5 + level / 2", "n - 1, level", OF_PAIRED),
    Mutation(PAIRED, "set(arm) & set(baseline)", "set(arm)", OF_PAIRED),
    Mutation(TARGETS, 'sign = -1.0 if mode == "min" else 1.0', "sign = 1.0", OF_TARGETS),
    Mutation(TARGETS, "share * (steps - before[0])", "(steps - before[0])", OF_TARGETS),
    Mutation(CLOCK, '(?:ute)?s?)?": 60', '(?:ute)?s?)?": 6', OF_CLOCK),
    Mutation(
        "comparison/plan/learning_rates.py",
        'mean if mode == "max" else -mean',
        "mean",
        "comparison/plan/test_learning_rates.py",
    ),
    Mutation(
        "structured_init/presets.py",
        'letter == "," and depth == 0',
        'letter == ","',
        "comparison/plan/test_prepare.py",
    ),
    # The referee, looks that may be repeated, and what a comparison found
    Mutation(REFEREE, "level = 1 - 2 * level_of", "level = 1 - level_of", OF_REFEREE),
    Mutation(REFEREE, "(proposals * 2 ** (block - 1))", "(proposals * 2**block)", OF_REFEREE),
    Mutation(REFEREE, "else (interval.low, -1)", "else (interval.low, 1)", OF_REFEREE),
    Mutation("comparison/verdicts/memory.py", "theirs.keys()) - known)", "theirs.keys()))", OF_REFEREE),
    Mutation(PAIRED, "* deviation / math.sqrt(n) if", "* deviation if", OF_PAIRED),
    Mutation(LOOKS, "1 - (1 - level) / len(LOOKS)", "level", OF_LOOKS),
    Mutation(
        "comparison/command/judging.py",
        "options.baseline or (compared.baseline if first else None)",
        "options.baseline or compared.baseline",
        OF_REFEREE,
    ),
    Mutation(RUNS, "{**known.get(point, {}), **choices.get(point, {})}", "choices.get(point, {})", OF_RUNS),
    Mutation(RUNS, '(not self.tested or result["tested"])', 'result["tested"]', OF_RUNS),
    Mutation(
        f"{CONTRASTS}/place.py",
        "ahead = arm if (each.interval.mean > 0)",
        "ahead = arm if (each.interval.mean < 0)",
        OF_EFFECTS,
    ),
    Mutation(
        EFFECTS,
        "ours.count * theirs.runs > theirs.count * ours.runs",
        "ours.count > theirs.count",
        OF_EFFECTS,
    ),
    # Where a host keeps what it has, the overlay, and what is said of it
    Mutation(
        f"{LIBRARY}/hosts/transformers.py",
        "0 if padding is None else padding + 1",
        "0 if padding is None else padding",
        "structured_init/hosts/test_transformers.py",
    ),
    Mutation(f"{LIBRARY}/hosts/watching/tables.py", "return buffer, first\n", "return buffer, 0\n", OF_POSITIONS),
    Mutation(
        f"{LIBRARY}/hosts/attention_positions.py",
        "prefix + place[:, 0] * grid[1] + place[:, 1]",
        "prefix + place[:, 0] * grid[0] + place[:, 1]",
        "structured_init/test_previous_token.py",
    ),
    Mutation(f"{LIBRARY}/hosts/shared.py", "if overlap(first.place, second.place):", "if False:", OF_SHARED),
    Mutation(
        f"{LIBRARY}/hosts/shared.py", "if (other := other_role(weights, role)) is not None:", "if False:", OF_SHARED
    ),
    Mutation(
        f"{LIBRARY}/hosts/layout.py",
        "begin = self.start + torch.arange(self.heads)",
        "begin = torch.arange(self.heads)",
        "structured_init/hosts/test_layout.py structured_init/hosts/test_attention_sites.py "
        "structured_init/test_previous_token.py",
    ),
    Mutation(
        f"{LIBRARY}/weights.py",
        "return value.clone() if own else value\n\n\ndef",
        "return value\n\n\ndef",
        "structured_init/controls/test_scrambled.py structured_init/test_induction.py",
    ),
    Mutation(
        f"{LIBRARY}/log.py",
        "(earlier.get(quantity, (before,))[0], after)",
        "(before, after)",
        "structured_init/test_report.py",
    ),
    # The command line, the optimizer, callbacks
    Mutation(
        "lightning_modules/cli/configurations.py",
        'if "class_path" in above and above["class_path"] != below.get("class_path"):',
        'if "class_path" in above:',
        "lightning_modules/cli/test_configs.py",
    ),
    Mutation(
        "lightning_modules/cli/lightning_cli.py",
        "None not in (said, known) and said != known",
        "None not in (said, known) and said < known",
        "lightning_modules/cli/test_wrong_inputs.py",
    ),
    Mutation(OPTIM, "isinstance(each, nn.Linear)][-1:]", "isinstance(each, nn.Linear)][:1]", OF_OPTIM),
    Mutation(OPTIM, "np.interp((step + 1) /", "np.interp(step /", OF_OPTIM),
    Mutation(OPTIM, "max(total_steps - warmup_steps, 1)", "max(total_steps, 1)", OF_OPTIM),
    Mutation(
        "callbacks/elapsed_time.py",
        'self._before = self.earlier = state_dict["seconds"]',
        'self.earlier = state_dict["seconds"]',
        "callbacks/test_samples.py comparison/train/test_run.py",
    ),
    Mutation(
        "callbacks/exact_resume.py",
        "    random.setstate((version, tuple(words), gauss))",
        "    pass",
        "callbacks/test_exact_resume.py",
    ),
    Mutation(
        "callbacks/samples.py", "manual_seed(seed))  # type", "manual_seed(0))  # type", "callbacks/test_samples.py"
    ),
    Mutation(
        "callbacks/attention_map.py",
        "epoch = trainer.current_epoch + 1",
        "epoch = trainer.current_epoch",
        "callbacks/test_attention_map.py",
    ),
    Mutation("callbacks/head_scores.py", "step=max(step - 1, 0)", "step=step", "callbacks/test_head_scores.py"),
    # Samplers, loaders and data
    Mutation(
        f"{DATA}/augment.py",
        "random.randint(0, 2 * around), random.randint(0, 2 * around)",
        "random.randint(0, 2 * around), random.randint(0, around)",
        DATA,
    ),
    Mutation(f"{DATA}/images.py", "derive_seeds(self.seed, epochs, indices)", "derive_seeds(self.seed, indices)", DATA),
    Mutation(f"{DATA}/images.py", "count = images[..., 0].size", "count = images.size", DATA),
    Mutation(f"{DATA}/recall/recall_data.py", "(self.part), epochs", "(self.part), 0", DATA),
    Mutation(
        f"{DATA}/recall/recall_data.py",
        "self.lengths[index // self.size]",
        "self.lengths[index % len(self.lengths)]",
        DATA,
    ),
    Mutation(f"{DATA}/recall/tasks.py", ">= length + 2", ">= length + 1", DATA),
    Mutation(
        f"{DATA}/recall/tasks.py", "rng.choice(half - 1, pairs, replace=False)", "rng.choice(half - 1, pairs)", DATA
    ),
    Mutation(f"{DATA}/recall/tasks.py", "np.argsort(-(weights", "np.argsort((weights", DATA),
    Mutation(f"{DATA}/seeded.py", "derive_seeds(self.seed, self.epoch)[0]", "derive_seeds(self.seed, 0)[0]", DATA),
    Mutation(
        f"{DATA}/seeded.py",
        "order[self.rank : self.total_size : self.num_replicas]",
        "order[self.rank :: self.num_replicas]",
        DATA,
    ),
    Mutation(
        f"{DATA}/seeded.py",
        "self.sampler.start = position * (self.batch_size or 1)",
        "self.sampler.start = position",
        DATA,
    ),
    Mutation(f"{DATA}/text/classification_data.py", "np.setdiff1d(rows, self.parts[0])", "rows", DATA),
    Mutation(
        f"{DATA}/text/classification_data.py",
        "room = self.max_length - len(begin) - len(end)",
        "room = self.max_length",
        DATA,
    ),
    # Stopping, resuming and what callbacks keep
    Mutation(
        "callbacks/attention_map.py",
        "return max(sizes)",
        "return sizes[0]",
        "callbacks/test_attention_map.py",
    ),
    Mutation(
        "callbacks/elapsed_time.py",
        "self._before = self.initialization = math",
        "self.initialization = math",
        "callbacks/test_samples.py callbacks/test_exact_resume.py",
    ),
    Mutation(
        "callbacks/exact_resume.py",
        "        parameters[name].grad = gradient.to(parameters[name])\n",
        "        pass\n",
        "callbacks/test_exact_resume.py",
    ),
    Mutation(
        "callbacks/exact_resume.py",
        '            metric._update_count = known["update_count"]\n',
        "",
        "callbacks/test_exact_resume.py",
    ),
    Mutation(
        "callbacks/exact_resume.py",
        '"logged": [] if moment["epoch_end"] else logged_state(trainer)',
        '"logged": []',
        "callbacks/test_exact_resume.py",
    ),
    Mutation(
        "callbacks/init.py",
        "        if hasattr(pl_module, ACCOUNT):\n            return\n        if self.when",
        "        if self.when",
        "callbacks/test_init_callback.py",
    ),
    Mutation("callbacks/init.py", '"strict": self.strict', '"strict": False', "callbacks/test_init_callback.py"),
    Mutation(
        "callbacks/samples.py",
        "indices = sorted(order[:samples].tolist())",
        "indices = list(range(samples))",
        "callbacks/test_samples.py",
    ),
    # Verdicts
    Mutation(f"{CONTRASTS}/contrasts.py", 'verdict in ("worse", "equivalent")', 'verdict == "worse"', OF_RESULTS),
    Mutation(
        f"{RUN_FILES}/metric.py", "max(-interval.low, interval.high) < margin", "interval.high < margin", OF_RESULTS
    ),
    Mutation(
        f"{CONTRASTS}/contrasts.py",
        "if each.adjusted >= FAMILY_LEVEL:",
        "if False:",
        OF_RESULTS,
    ),
    Mutation(f"{CONTRASTS}/controls.py", "if role != PEER} - {baseline}", "} - {baseline}", OF_RESULTS),
    Mutation(f"{CONTRASTS}/finals.py", "if sign * value >= sign * limit}", "if value >= limit}", OF_RESULTS),
    Mutation(
        f"{CONTRASTS}/place.py",
        "judge_together([each for place in found for each in place.contrasts])",
        "[judge_together(place.contrasts) for place in found]",
        OF_RESULTS,
    ),
    Mutation(
        f"{CONTRASTS}/finals.py",
        'lost=rows.get("diverged", False)',
        "lost=False",
        OF_RESULTS,
    ),
    Mutation(
        f"{RUN_FILES}/metric.py",
        'if (interval.mean > 0) == (self.mode == "max")',
        "if interval.mean > 0",
        OF_RESULTS,
    ),
    Mutation(
        PAIRED,
        "largest = max(largest, min(1.0, (len(p_values) - place) * p_values[key]))",
        "largest = min(1.0, (len(p_values) - place) * p_values[key])",
        OF_PAIRED,
    ),
    Mutation(PAIRED, "float(2 * special", "float(special", OF_PAIRED),
    Mutation(
        f"{CONTRASTS}/targets.py",
        "if curve and not math.isfinite(curve[-1][1]):\n        return None",
        "if not curve:\n        return None",
        f"comparison/test_tables.py {CONTRASTS}/test_diverged.py {CONTRASTS}/test_success.py",
    ),
    Mutation(
        f"{CONTRASTS}/targets.py",
        "[one.count, one.runs - one.count]",
        "[one.count, one.runs]",
        f"{CONTRASTS}/test_success.py",
    ),
    # Reading of tables and runs
    Mutation(f"{RUN_FILES}/elsewhere/__init__.py", "usual_baseline(arms) or arms[0]", "arms[0]", OF_RESULTS),
    Mutation(f"{RUN_FILES}/elsewhere/values.py", '["run", "step"], kind', '["run"], kind', OF_RESULTS),
    Mutation(f"{RUN_FILES}/metric.py", "len(shares) and not", "False and not", OF_RESULTS),
    Mutation(f"{RUN_FILES}/elsewhere/values.py", '"crashed", "failed"', '"crashed"', OF_RESULTS),
    Mutation("comparison/command/finding.py", "math.ceil(len(gains) / 2)", "len(gains)", "comparison/test_race.py"),
    Mutation(f"{RUN_FILES}/records.py", 'table["step"] += 1', 'table["step"] += 0', OF_RESULTS),
    # Capture
    Mutation(TAPS, "left if is_left else right.mT", "left", OF_CAPTURE),
    Mutation(TAPS, "torch.finfo(maps.dtype).bits < 32 and", "False and", OF_CAPTURE),
    Mutation("structured_init/analysis/capture.py", "(*heads, *heads))", "(*heads,))", OF_CAPTURE),
    # Tasks, optimizers and certificates
    Mutation(
        f"{TASKS}/recall.py",
        "((predictions != targets) & scored).sum(1)",
        "(predictions != targets).sum(1)",
        f"{TASKS}/recall",
    ),
    Mutation(f"{TASKS}/recall.py", "going_on = going_on and bool(", "going_on = bool(", f"{TASKS}/recall"),
]
