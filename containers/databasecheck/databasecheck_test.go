package databasecheck

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// roleVariable makes the test's program check the database of its argument, or use it as containerd would.
const roleVariable = "BERTH_DATABASECHECK_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case "check":
		// As containerd has it: the library ends the process with the code of the error.
		if err := Command().Run(context.Background(), []string{"check-database", os.Args[1]}); err != nil {
			os.Exit(exitUnknown)
		}
	case "use":
		if err := use(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// use opens the database, reads all of it, and writes to each bucket.
func use(path string) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, bucket *bolt.Bucket) error { return readAll(bucket) })
	})
	if err != nil {
		return err
	}
	for i := range 50 {
		err := db.Update(func(tx *bolt.Tx) error {
			return tx.ForEach(func(_ []byte, bucket *bolt.Bucket) error {
				return bucket.Put(fmt.Appendf(nil, "new %d", i), bytes.Repeat([]byte("x"), 100))
			})
		})
		if err != nil {
			return err
		}
	}
	return db.Close()
}

func readAll(bucket *bolt.Bucket) error {
	return bucket.ForEach(func(key, value []byte) error {
		if value == nil {
			return readAll(bucket.Bucket(key))
		}
		return nil
	})
}

// makeDatabase writes a database with buckets in buckets, pages of branches, values over several pages, and free pages.
func makeDatabase(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "whole.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	put := func(tx *bolt.Tx) error {
		for _, name := range []string{"images", "leases"} {
			bucket, err := tx.CreateBucketIfNotExists([]byte(name))
			for i := 0; err == nil && i < 300; i++ {
				err = bucket.Put(fmt.Appendf(nil, "%s %03d", name, i), bytes.Repeat([]byte{'v'}, 20+i%7*20))
			}
			for i := 0; err == nil && i < 5; i++ {
				var inner *bolt.Bucket
				if inner, err = bucket.CreateBucketIfNotExists(fmt.Appendf(nil, "bucket %d", i)); err == nil {
					err = inner.Put([]byte("large"), bytes.Repeat([]byte("l"), i*3000))
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for range 3 {
		if err := db.Update(put); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// as runs this program in a role, and returns how it ended and what it printed.
func as(t *testing.T, role, path string) (code int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], path)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GOTRACEBACK=none")
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(output)
}

// TestDamagedPages damages each page of a database in several ways, those that are free included: what the check calls whole bbolt can
// read and write.
func TestDamagedPages(t *testing.T) {
	whole := makeDatabase(t)
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"check", "use", "check"} {
		if code, out := as(t, role, path); code != 0 {
			t.Fatalf("%s of a whole database ends with %d: %s", role, code, out)
		}
	}
	size := os.Getpagesize()
	random := rand.New(rand.NewPCG(1, 2))
	found, all := 0, 0
	for name, damage := range map[string]func(page []byte, number int){
		"zeros": func(page []byte, _ int) { clear(page) },
		"random": func(page []byte, _ int) {
			for i := range page {
				page[i] = byte(random.Uint32())
			}
		},
		"one bit":             func(page []byte, _ int) { page[random.IntN(32)] ^= 1 << random.IntN(8) },
		"the page before":     func(page []byte, number int) { copy(page, whole[(number-1)*size:number*size]) },
		"itself as its child": func(page []byte, number int) { binary.NativeEndian.PutUint64(page[24:], uint64(number)) },
	} {
		for number := 2; number < len(whole)/size; number++ {
			data := bytes.Clone(whole)
			page := data[number*size : (number+1)*size]
			damage(page, number)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			code, out := as(t, "check", path)
			if code == exitUnknown {
				t.Errorf("%s in page %d: the check does not know: %s", name, number, out)
			}
			if all++; code != 0 {
				found++
				continue
			}
			if code, out := as(t, "use", path); code != 0 {
				t.Errorf("%s in page %d: the check finds nothing, and the use ends with %d: %s", name, number, code, out)
			}
		}
	}
	t.Logf("found %d of %d", found, all)
}

// TestWhatIsNotTheDatabasesFault: a database that is open or does not exist is not damaged.
func TestWhatIsNotTheDatabasesFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if code, out := as(t, "check", path); code != exitUnknown {
		t.Errorf("the check of no file ends with %d: %s", code, out)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if code, out := as(t, "check", path); code != exitUnknown {
		t.Errorf("the check of an open database ends with %d: %s", code, out)
	}
}
