package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var (
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	makeTarget = regexp.MustCompile(`(?m)^([a-z-]+%?):`)
	columns    = regexp.MustCompile(` {2,}`)
)

// documents are what people read and then type from, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "conformance/*.md", "examples/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join("..", "..", pattern))
		require.NoError(t, err)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			texts[path] = string(data)
		}
	}
	return texts
}

// commandsIn is what a document has people type: its indented lines and what stands in backticks.
func commandsIn(text string) []string {
	text = strings.ReplaceAll(text, "\\\n", "")
	var found []string
	for line := range strings.Lines(text) {
		if command, indented := strings.CutPrefix(line, "    "); indented {
			command, _, _ = strings.Cut(strings.TrimSpace(command), "#")
			found = append(found, columns.Split(strings.TrimPrefix(command, "$ "), 2)[0])
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(strings.ReplaceAll(text, "\n", " "), -1) {
		found = append(found, span[1])
	}
	return found
}

// flagOf is the flag that a word names; nil, true if it names none, nil, false if there is none of that name.
func flagOf(word string, flags ...*pflag.FlagSet) (flag *pflag.Flag, ok bool) {
	name, _, _ := strings.Cut(word, "=")
	for _, set := range flags {
		long, isLong := strings.CutPrefix(name, "--")
		short, isShort := strings.CutPrefix(name, "-")
		switch {
		case isLong:
			flag = set.Lookup(long)
		case isShort && len(short) == 1:
			flag = set.ShorthandLookup(short)
		default:
			return nil, true
		}
		if flag != nil {
			return flag, true
		}
	}
	return nil, false
}

// requireCommand follows the words of a command as berth does.
func requireCommand(t *testing.T, root *cobra.Command, where string, words []string) {
	t.Helper()
	cmd := root
	for _, word := range words {
		word = strings.Trim(word, "[]…")
		if cmd.DisableFlagParsing || word == "|" || word == "--" {
			return // the rest is another program's
		}
		if _, ok := flagOf(word, cmd.Flags(), cmd.InheritedFlags(), root.Flags()); !ok {
			t.Errorf("%s: `berth %s`: %s has no flag %s", where, strings.Join(words, " "), cmd.CommandPath(), word)
		}
		at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == word || c.HasAlias(word) })
		switch {
		case at >= 0:
			cmd = cmd.Commands()[at]
		case cmd == root && word != "" && !strings.HasPrefix(word, "-"):
			t.Errorf("%s: `berth %s`: there is no command %s", where, strings.Join(words, " "), word)
			return
		}
	}
}

// TestDocumentsNameWhatIsThere: every command, flag and make target that a document names exists. Whether they do what
// the text says is for other tests.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	root := newRoot()
	root.InitDefaultHelpFlag()
	all := []*pflag.FlagSet{root.Flags()}
	for _, cmd := range root.Commands() {
		cmd.InitDefaultHelpFlag()
		all = append(all, cmd.Flags(), cmd.PersistentFlags())
	}
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	var targets []string
	for _, target := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, target[1])
	}
	seen := map[string]int{}
	for path, text := range documents(t) {
		for _, command := range commandsIn(text) {
			words := strings.Fields(command)
			if len(words) == 0 {
				continue
			}
			switch {
			case words[0] == "berth" && len(words) > 1:
				requireCommand(t, root, path, words[1:])
			case words[0] == "make" && len(words) > 1:
				require.Condition(t, func() bool {
					return slices.ContainsFunc(targets, func(target string) bool {
						prefix, isPattern := strings.CutSuffix(target, "%")
						return target == words[1] || isPattern && strings.HasPrefix(words[1], prefix)
					})
				}, "%s: `%s`: there is no such target", path, command)
			case strings.HasPrefix(words[0], "--") && words[0] != "--force": // which is kubectl's
				if _, ok := flagOf(words[0], all...); !ok && filepath.Base(path) != "migration.md" { // which names the flags of other programs, too
					t.Errorf("%s: no command has the flag %s", path, words[0])
				}
				words[0] = "--"
			}
			seen[words[0]]++
		}
	}
	for word, least := range map[string]int{"berth": 40, "make": 8, "--": 15} {
		require.Greater(t, seen[word], least, "the documents say `%s …` more often than is found here", word)
	}
}
