// What the commands do in the editor. `vscode` is handed in, so that a test can hand in its own.
"use strict";

const program = require("./program");

const NAME = "fsdp2lint";

/** The functions behind the commands of package.json. `log` takes what went wrong in full. */
function commands(vscode, log) {
  function settings() {
    return vscode.workspace.getConfiguration(NAME);
  }

  /** The folder of a document, else the first one of the workspace. */
  function folderOf(uri) {
    const around = uri && vscode.workspace.getWorkspaceFolder(uri);
    const folder = around ?? vscode.workspace.workspaceFolders?.[0];
    return folder?.uri.fsPath;
  }

  /** Run something that asks the program, and show why when it fails. */
  function guarded(action) {
    return async (...given) => {
      try {
        return await action(...given);
      } catch (error) {
        log(error.message);
        await vscode.window.showErrorMessage(`${NAME}: ${error.message.split("\n")[0]}`);
        return undefined;
      }
    };
  }

  /** Show the page of a rule: the one whose code is given, else one that the user picks. */
  const rule = guarded(async (code) => {
    const known = await program.rules(settings().get("command"), folderOf());
    const items = known.map((one) => ({ label: one.code, description: one.name, detail: one.summary, rule: one }));
    const here = typeof code === "string" ? items.find((one) => one.label === code) : undefined;
    const picked = here ?? (await vscode.window.showQuickPick(items, { matchOnDescription: true, matchOnDetail: true }));
    if (picked === undefined) {
      return;
    }
    const content = program.page(picked.rule);
    const document = await vscode.workspace.openTextDocument({ language: "markdown", content });
    await vscode.commands.executeCommand("markdown.showPreview", document.uri);
  });

  /** Propose what a migration writes, as an edit that the user looks at and accepts file by file. */
  async function proposed(target, folder) {
    const made = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title: `${NAME}: migrating` },
      () => program.migration(settings().get("command"), target, folder),
    );
    const edit = new vscode.WorkspaceEdit();
    for (const file of made.files) {
      const uri = vscode.Uri.file(file.path);
      const document = await vscode.workspace.openTextDocument(uri);
      const whole = new vscode.Range(document.positionAt(0), document.positionAt(document.getText().length));
      edit.replace(uri, whole, file.text, {
        label: "Migrate FSDP1 to FSDP2",
        description: file.filename,
        needsConfirmation: true,
      });
    }
    if (made.files.length > 0) {
      await vscode.workspace.applyEdit(edit, { isRefactoring: true });
    }
    await vscode.window.showInformationMessage(`${NAME}: ${program.conclusion(made)}`);
  }

  const migrate = guarded(async () => {
    const document = vscode.window.activeTextEditor?.document;
    if (document === undefined || document.uri.scheme !== "file") {
      throw new program.Failed("open the file to migrate first");
    }
    if (document.isDirty && !(await document.save())) {
      throw new program.Failed("save the file first: the text on disk is what is migrated");
    }
    await proposed(document.uri.fsPath, folderOf(document.uri));
  });

  const migrateFolder = guarded(async () => {
    const folder = folderOf(vscode.window.activeTextEditor?.document.uri);
    if (folder === undefined) {
      throw new program.Failed("open a folder first");
    }
    if (!(await vscode.workspace.saveAll(false))) {
      throw new program.Failed("save the files first: the text on disk is what is migrated");
    }
    await proposed(".", folder);
  });

  return { migrate, migrateFolder, rule };
}

module.exports = { NAME, commands };
