package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const dockerConfigFile = "config.json"

// dockerConfigDir is where the user's clients of registries keep their configuration, empty if the user has no home.
func dockerConfigDir() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// writeDockerConfig makes dir a configuration like that in from, which may not exist, with one more login: a file config.json, and links
// to all else, such as plugins.
func writeDockerConfig(dir, from, registry, user, password string) error {
	var config map[string]json.RawMessage
	if from != "" {
		data, err := os.ReadFile(filepath.Join(from, dockerConfigFile))
		if err == nil {
			err = json.Unmarshal(data, &config)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read %s: %w", filepath.Join(from, dockerConfigFile), err)
		}
	}
	if config == nil {
		config = map[string]json.RawMessage{}
	}
	auth := map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
	// Without its own helper, the registry would be one of the user's credential store, which does not know the login.
	for field, value := range map[string]any{"auths": auth, "credHelpers": ""} {
		if err := setMember(config, field, registry, value); err != nil {
			return fmt.Errorf("read %s: %s: %w", filepath.Join(from, dockerConfigFile), field, err)
		}
	}
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, dockerConfigFile), data, 0o600); err != nil {
		return err
	}
	return linkEntries(dir, from)
}

// setMember sets a member of an object of the configuration.
func setMember(config map[string]json.RawMessage, field, name string, value any) error {
	var members map[string]json.RawMessage
	if data := config[field]; data != nil {
		if err := json.Unmarshal(data, &members); err != nil {
			return err
		}
	}
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	var err error
	if members[name], err = json.Marshal(value); err != nil {
		return err
	}
	config[field], err = json.Marshal(members)
	return err
}

// linkEntries links what else is in the configuration's directory.
func linkEntries(dir, from string) error {
	if from == "" {
		return nil
	}
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.Name() != dockerConfigFile {
			err = errors.Join(err, os.Symlink(filepath.Join(from, entry.Name()), filepath.Join(dir, entry.Name())))
		}
	}
	return err
}
