// What the commands get from the program, and do with it in an editor.
"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { test } = require("node:test");

const { commands } = require("../src/commands");
const program = require("../src/program");

const COMMAND = (process.env.FSDP2LINT ?? "fsdp2lint").split(" ");
const OLD = `import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(8, 8))
norm = model.clip_grad_norm_(1.0)
`;

/** As much of an editor as the commands use: one file is open, and everything shown is kept. */
function editor(folder, name, answers = {}) {
  const shown = { errors: [], messages: [], edits: [], previews: [], documents: [], picks: [] };
  const uri = (fsPath) => ({ fsPath, scheme: "file" });
  const text = (document) => ({ ...document, getText: () => document.content, positionAt: (offset) => offset });
  const vscode = {
    ProgressLocation: { Notification: 15 },
    Range: class {
      constructor(start, end) {
        Object.assign(this, { start, end });
      }
    },
    Uri: { file: uri },
    WorkspaceEdit: class {
      replaced = [];
      replace(...given) {
        this.replaced.push(given);
      }
    },
    commands: { executeCommand: async (...given) => shown.previews.push(given) },
    window: {
      activeTextEditor: name && { document: { uri: uri(path.join(folder, name)), isDirty: false } },
      showErrorMessage: async (said) => shown.errors.push(said),
      showInformationMessage: async (said) => shown.messages.push(said),
      showQuickPick: async (items) => {
        shown.picks.push(items);
        return items.find((one) => one.label === answers.pick);
      },
      withProgress: (_, work) => work(),
    },
    workspace: {
      workspaceFolders: [{ uri: uri(folder) }],
      applyEdit: async (edit, how) => shown.edits.push({ edit, how }),
      getConfiguration: () => new Map([["command", answers.command ?? COMMAND]]),
      getWorkspaceFolder: () => undefined,
      openTextDocument: async (what) => {
        const content = what.content ?? fs.readFileSync(what.fsPath, "utf8");
        shown.documents.push(content);
        return text({ uri: what, content });
      },
      saveAll: async () => true,
    },
  };
  return { shown, ...commands(vscode, () => {}) };
}

function project() {
  const folder = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), "fsdp2lint-")));
  fs.writeFileSync(path.join(folder, "old.py"), OLD);
  fs.writeFileSync(path.join(folder, "other.py"), "x = 1\n");
  return folder;
}

test("the command line is that of the settings", () => {
  const made = program.serverOptions(["${workspaceFolder}/.venv/bin/python", "-m", "fsdp2lint"], "/project");
  assert.deepEqual(made, {
    command: "/project/.venv/bin/python",
    args: ["-m", "fsdp2lint", "server"],
    options: { cwd: "/project" },
  });
  assert.equal(program.serverOptions([], undefined).command, "fsdp2lint");
});

test("a migration is proposed, and nothing is written", { timeout: 120_000 }, async () => {
  const folder = project();
  const { shown, migrate, migrateFolder } = editor(folder, "old.py");
  await migrate();
  await migrateFolder();
  assert.deepEqual(shown.errors, []);
  assert.equal(shown.edits.length, 2);
  for (const { edit, how } of shown.edits) {
    const [[uri, range, text, note]] = edit.replaced;
    assert.equal(edit.replaced.length, 1);
    assert.equal(uri.fsPath, path.join(folder, "old.py"));
    assert.deepEqual([range.start, range.end], [0, OLD.length]);
    assert.match(text, /fully_shard\(/);
    assert.ok(note.needsConfirmation && how.isRefactoring);
  }
  assert.match(shown.messages[0], /^fsdp2lint: 1 file would change/);
  assert.equal(fs.readFileSync(path.join(folder, "old.py"), "utf8"), OLD);
  fs.rmSync(folder, { recursive: true });
});

test("a file without FSDP1 stays as it is", { timeout: 120_000 }, async () => {
  const folder = project();
  const { shown, migrate } = editor(folder, "other.py");
  await migrate();
  assert.deepEqual(shown.edits, []);
  assert.deepEqual(shown.messages, ["fsdp2lint: No FSDP1 code found."]);
  fs.rmSync(folder, { recursive: true });
});

test("the page of a rule is shown, picked or named", { timeout: 120_000 }, async () => {
  const { shown, rule } = editor(os.tmpdir(), undefined, { pick: "FSDP203" });
  await rule();
  await rule("FSDP201");
  assert.equal(shown.picks.length, 1);
  assert.match(shown.documents[0], /^# FSDP203 direct-forward-call\n/);
  assert.match(shown.documents[1], /^# FSDP201 optimizer-before-shard\n/);
  assert.equal(shown.previews[0][0], "markdown.showPreview");
});

test("what goes wrong is one sentence", { timeout: 120_000 }, async () => {
  const missing = editor(os.tmpdir(), undefined, { command: ["fsdp2lint-is-not-here"] });
  await missing.rule();
  assert.deepEqual(missing.shown.errors, [
    'fsdp2lint: fsdp2lint-is-not-here was not found: set "fsdp2lint.command" to its path',
  ]);
  const { shown, migrate } = editor(os.tmpdir(), undefined);
  await migrate();
  assert.deepEqual(shown.errors, ["fsdp2lint: open the file to migrate first"]);
});
