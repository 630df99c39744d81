import assert from 'node:assert/strict';
import { test } from 'node:test';
import { crc32 } from './crc32.mjs';
import { xxh3 } from './xxh3.mjs';

// Made with the reference implementation (xxhash 0.8.2 or newer) and zlib: [length, xxh3-64, crc32].
const VECTORS = [
  [0, '2d06800538d394c2', '00000000'],
  [1, 'e12ef9d2eb86ceeb', 'a505df1b'],
  [2, '226a6fe898650564', '873bc52c'],
  [3, '2fd1e2afb724fc1f', 'a7816bd5'],
  [4, '153d706a4d10c5c3', '34ddecbc'],
  [5, '48581867e4b2c143', '22eec329'],
  [7, '653125b7241e13a8', '339be4d8'],
  [8, '991e03751ca0a3ad', '11987c06'],
  [9, 'b5eb6d5b4288f622', '41510b91'],
  [12, '704db1821ec3874b', '421c8fd5'],
  [15, '1639a2c836e57cb5', 'b0acc79c'],
  [16, '1eabce6b4541c515', '98086d74'],
  [17, '6342ad15ca610384', '1c45181c'],
  [31, 'de607fd38c3cfcd0', '5d08401d'],
  [32, '816a9d62229b5a83', '815297bd'],
  [33, 'de9714c8da9d86fe', 'b1feea09'],
  [63, '469bc8d1552d05aa', 'f3928b8e'],
  [64, 'e019d72182514caf', '37aebde9'],
  [65, '444fefe54550cc2f', '18f1c3b3'],
  [96, '1211cdc1a45faaf7', '0d616eef'],
  [97, 'b3800e90c860ab34', '07899507'],
  [127, 'a53b28ad5a01c4af', 'bb5efb15'],
  [128, '51dc7c7f82728b75', '7f15a047'],
  [129, '1a1af6b92463c78b', '7280be5b'],
  [130, '34afb86f55c167ce', 'c6fb7438'],
  [143, '77c3c81f00a0e726', '1307f207'],
  [144, '5b0e7276c5b75f5f', 'be2cc1cb'],
  [160, 'f1564094f5e904bc', 'f3f14372'],
  [192, '67c75d98e3f0e438', 'afbcd41f'],
  [200, 'e4cedc51e2146c07', 'd3ff7025'],
  [239, '061fc2f8c525da2f', '69fcadc1'],
  [240, '1c8bbc22c997a886', '34b40ca9'],
  [241, '5f904835e79c14cb', '37ecea0d'],
  [255, '0b7de21bfa96c75a', '194281f3'],
  [256, '01de8b22604b902a', 'f49dad83'],
  [257, 'c0ba3c39479518ba', 'c69b8a6d'],
  [320, 'a1b49ea755d625aa', 'a29d695c'],
  [511, 'f1197e9ecf74006f', 'b83894a7'],
  [512, 'b56576ab9723d8e7', '366abe3a'],
  [513, 'd2ffc6afb2436f08', '10d23527'],
  [1023, 'cf518f5177b45949', 'a9981690'],
  [1024, '01f34cec95268e78', 'd09491e7'],
  [1025, '34bc85739edee099', '247e6acc'],
  [1087, '40fdf9f1bb598558', 'a0d1ae35'],
  [1088, 'd388d77d1885f0f4', '7be760d9'],
  [1089, '6c0ec792fe1abc89', 'cc366f80'],
  [1999, '9d8f545ab771d6c6', 'beb5e30c'],
  [2000, 'c88cf3f1c061cbcc', '9824f17b'],
  [2048, '9c8e0cc777f250e2', '40fb5863'],
  [2049, '3521280cdbf85bc0', '0e489b23'],
  [4096, '1e87228f2b3ee3f6', '88f36056'],
  [65535, '653e72d9145f58f6', '1a4cbf36'],
  [65536, 'a2303780aa7dafdb', '3abe0c90'],
  [65537, '8ce9c256e5f8a00b', 'd5e5ee3e'],
];

const bytesOf = (length) => Uint8Array.from({ length }, (_, index) => (index * index * 7 + index * 13 + length) & 0xff);

test('xxh3-64 and crc32 agree with the reference implementations for every branch by length', () => {
  for (const [length, wanted, crc] of VECTORS) {
    const bytes = bytesOf(length);
    assert.equal(xxh3(bytes).toString(16).padStart(16, '0'), wanted, `xxh3 of ${length} bytes`);
    assert.equal(crc32(bytes).toString(16).padStart(8, '0'), crc, `crc32 of ${length} bytes`);
  }
});

test('a digest does not depend on where the bytes lie in their buffer', () => {
  const bytes = bytesOf(1500);
  const shifted = new Uint8Array(1503);
  shifted.set(bytes, 3);
  assert.equal(xxh3(shifted.subarray(3)), xxh3(bytes));
});
